package org.apache.spark.sql.lamina

import java.net.URI
import java.nio.file.Files
import java.nio.file.attribute.PosixFilePermissions

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs._
import org.apache.hadoop.fs.permission.FsPermission

/**
 * Local files without processes. Where Hadoop has no native library it forks one for each permission that it sets and
 * each link that it might follow: about six for a file of Spark's logs, fifty for a test of these suites.
 */
class RawLocalFiles extends RawLocalFileSystem {

  override def setPermission(path: Path, permission: FsPermission): Unit =
    // refuses a sticky bit, which Spark never sets
    Files.setPosixFilePermissions(pathToFile(path).toPath, PosixFilePermissions.fromString(permission.toString))

  override def getFileLinkStatus(path: Path): FileStatus =
    if (Files.isSymbolicLink(pathToFile(path).toPath)) super.getFileLinkStatus(path) else getFileStatus(path)
}

/** For `fs.file.impl`. */
class LocalFiles extends LocalFileSystem(new RawLocalFiles)

/** For `fs.AbstractFileSystem.file.impl`, which Spark's checkpoint files use. Hadoop calls this constructor. */
class LocalFilesOfContext(uri: URI, conf: Configuration) extends ChecksumFs(new RawLocalFilesOfContext(uri, conf))

private class RawLocalFilesOfContext(uri: URI, conf: Configuration)
    extends DelegateToFileSystem(uri, new RawLocalFiles, conf, "file", false) {
  override def getUriDefaultPort: Int = -1 // no port
  override def isValidName(name: String): Boolean = true
}
