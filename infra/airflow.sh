#!/usr/bin/env bash
# Airflow on this machine with this project's DAGs, reachable from this machine only, until Ctrl-C.
# Its home (SQLite, logs, the password) is .lake/airflow, its settings are infra/airflow.env.
# In a container AIRFLOW_PUBLISHED is where its host's loopback, and nothing else, reaches the API: 127.0.0.1:PORT.
# Tasks start a JVM each; with SPARK_REMOTE set (see `lake serve connect`) they share that server instead.
#
# The components are started one by one, because `airflow standalone` serves task logs on every network interface.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
project=$(dirname "$here")
bin="$project/.venv/bin"
[[ -x $bin/airflow ]] || bin=$(dirname "$(command -v airflow)") # in a container, as its image has no .venv

while IFS='=' read -r name value; do
    [[ $name == AIRFLOW__* && -z ${!name:-} ]] && export "$name=$value"
done <"$here/airflow.env"
export AIRFLOW_HOME="${AIRFLOW_HOME:-$project/.lake/airflow}"
export AIRFLOW__CORE__DAGS_FOLDER="${AIRFLOW__CORE__DAGS_FOLDER:-$project/dags}"
if [[ $AIRFLOW__API__HOST != 127.0.0.1 && $AIRFLOW__API__HOST != localhost ]]; then
    echo "airflow: serves 127.0.0.1 only, found AIRFLOW__API__HOST=$AIRFLOW__API__HOST" >&2
    echo "  fix: unset it, and give others access through a TLS proxy on this machine" >&2
    exit 2
fi
if [[ ${AIRFLOW_PUBLISHED:-127.0.0.1:0} != 127.0.0.1:* ]]; then
    echo "airflow: is published on 127.0.0.1 only, found AIRFLOW_PUBLISHED=$AIRFLOW_PUBLISHED" >&2
    echo "  fix: AIRFLOW_PUBLISHED=127.0.0.1:8080, and publish the container's port there" >&2
    exit 2
fi
address="http://$AIRFLOW__API__HOST:$AIRFLOW__API__PORT"
public="http://${AIRFLOW_PUBLISHED:-$AIRFLOW__API__HOST:$AIRFLOW__API__PORT}"
export AIRFLOW__API__BASE_URL="$public" AIRFLOW__CORE__EXECUTION_API_SERVER_URL="$address/execution/"

umask 077
mkdir -p "$AIRFLOW_HOME"
passwords="$AIRFLOW_HOME/simple_auth_manager_passwords.json.generated"
[[ -s $passwords ]] || "$bin/python" -c \
    'import json, secrets; print(json.dumps({"admin": secrets.token_urlsafe(12)}))' >"$passwords"

if (exec 3<>"/dev/tcp/$AIRFLOW__API__HOST/$AIRFLOW__API__PORT") 2>/dev/null; then
    echo "airflow: port $AIRFLOW__API__PORT is in use; set AIRFLOW__API__PORT to another port" >&2
    exit 75
fi

"$bin/airflow" db migrate
[[ -z ${AIRFLOW_PUBLISHED:-} ]] || export AIRFLOW__API__HOST=0.0.0.0 # of the container's own network

# Ctrl-C reaches the components too: a scheduler that is then told to end a second time may wait for its executor for ever.
stop() {
    trap - EXIT
    kill $(jobs -p) 2>/dev/null || true
    for _ in {1..40}; do
        [[ -n $(jobs -pr) ]] || return 0
        sleep 0.5
    done
    pkill -KILL -P "$(jobs -pr | paste -sd,)" || true
    kill -KILL $(jobs -pr) 2>/dev/null || true
    wait
}
trap stop EXIT
trap 'exit 0' INT TERM
"$bin/airflow" api-server &
"$bin/airflow" scheduler --skip-serve-logs &
"$bin/airflow" dag-processor &
"$bin/airflow" triggerer --skip-serve-logs & # no DAG of Headwater needs it; without it the home page shows a fault
echo "airflow: $public  user admin  password in $passwords"
wait -n
echo "airflow: a component ended; stopping the others" >&2
exit 1
