package headwater;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import software.amazon.awssdk.awscore.exception.AwsServiceException;

/**
 * Commits to Delta tables in S3 by one conditional PUT each: of several writers of one version, one wins.
 *
 * Delta 4.4.0 has none that does: its S3SingleDriverLogStore looks whether the file is there, and then overwrites it.
 * S3A sends If-None-Match only for a file that is made by its builder with the option below (HADOOP-19256).
 */
public class PutIfAbsentLogStore extends HadoopFileSystemLogStore {
    private static final String CONDITIONAL = "fs.option.create.conditional.overwrite";
    private static final int PRECONDITION_FAILED = 412;

    public PutIfAbsentLogStore(Configuration conf) {
        super(conf);
    }

    @Override
    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration conf) throws IOException {
        FileSystem files = path.getFileSystem(conf);
        FSDataOutputStreamBuilder<?, ?> builder = files.createFile(path).create().recursive().overwrite(overwrite);
        if (!overwrite) {
            builder.must(CONDITIONAL, true);
        }
        try {
            FSDataOutputStream out = builder.build();
            try {
                while (actions.hasNext()) {
                    out.write((actions.next() + "\n").getBytes(StandardCharsets.UTF_8));
                }
            } catch (Throwable fault) {
                out.abort(); // closing it would commit the beginning
                throw fault;
            }
            out.close();
        } catch (org.apache.hadoop.fs.FileAlreadyExistsException exists) {
            throw exists(path, exists);
        } catch (IOException fault) {
            throw !overwrite && isTaken(fault) ? exists(path, fault) : fault;
        }
    }

    private static boolean isTaken(Throwable fault) {
        for (Throwable cause = fault; cause != null; cause = cause.getCause()) {
            if (cause instanceof AwsServiceException) {
                return ((AwsServiceException) cause).statusCode() == PRECONDITION_FAILED;
            }
        }
        return false;
    }

    private static FileAlreadyExistsException exists(Path path, Throwable cause) {
        FileAlreadyExistsException exists = new FileAlreadyExistsException(path.toString());
        exists.initCause(cause);
        return exists;
    }

    @Override
    public Boolean isPartialWriteVisible(Path path, Configuration conf) {
        return false;
    }
}
