#!/usr/bin/env bash
# Becomes a process that sees what one of a container would: `unshare --mount enter.sh`, as root.
#
# Of its environment: BASE is an empty folder, USER_ID who it is, LINKS and MOUNTS lines of `what it is<TAB>where it is seen`,
# MEMORY lines of folders that are empty, SECRETS a folder, HOSTS the text of /etc/hosts, WRITABLE whether the root is,
# HELD what setpriv takes away from it. The arguments are variables of its environment, and the command.
set -euo pipefail

mount -t tmpfs tmpfs "$BASE"
root="$BASE/root"
mkdir "$BASE/upper" "$BASE/work" "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$BASE/upper,workdir=$BASE/work" "$root"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
for folder in /opt /run $MEMORY; do
    mkdir -p "$root$folder"
    mount -t tmpfs -o mode=1777 tmpfs "$root$folder"
done
printf '%s\n' "headwater:x:$USER_ID:$USER_ID::/tmp:/bin/bash" >"$root/etc/passwd"
rm -f "$root/etc/hosts"
printf '%s' "$HOSTS" >"$root/etc/hosts"
cp -r "$SECRETS" "$root/run/secrets"
chown -R "$USER_ID" "$root/run/secrets"
chmod -R u=rX,go= "$root/run/secrets"
while IFS=$'\t' read -r what there; do
    mkdir -p "$root$(dirname "$there")"
    if [[ ! -e $root$what ]]; then # a checkout in a folder that is in memory
        mkdir -p "$root$(dirname "$what")"
        if [[ -d $what ]]; then mkdir "$root$what"; else touch "$root$what"; fi
        mount --bind "$what" "$root$what"
    fi
    ln -s "$what" "$root$there"
    while [[ $what != / ]]; do # into which others may not look, as into root's own
        chmod a+rx "$root$what"
        what=$(dirname "$what")
    done
done <<<"$LINKS"
while IFS=$'\t' read -r what there; do
    mkdir -p "$root$there"
    mount --bind "$what" "$root$there"
done <<<"$MOUNTS"
[[ $WRITABLE == yes ]] || mount -o remount,ro "$root"
# shellcheck disable=SC2086
exec chroot "$root" setpriv --reuid="$USER_ID" --regid="$USER_ID" --clear-groups $HELD env -i --chdir=/project "$@"
