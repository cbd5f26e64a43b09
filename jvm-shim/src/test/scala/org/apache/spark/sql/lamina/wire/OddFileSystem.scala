package org.apache.spark.sql.lamina.wire

import java.net.URI
import java.util.UUID

import org.apache.hadoop.fs.RawLocalFileSystem

/** Local files under a scheme of their own, which nobody but Hadoop, told by `fs.odd.impl`, has a file system for. */
class OddFileSystem extends RawLocalFileSystem {
  override def getScheme: String = "odd"
  override def getUri: URI = URI.create("odd:///")
}

/** Serves Hadoop files until standard input ends: `<token>` is the argument, the socket's path the first line. */
object HadoopFilesServer {
  def main(arguments: Array[String]): Unit = {
    val directory = PrivateDirectory.create(System.getProperty("java.io.tmpdir"))
    val files = HadoopFiles.listen(directory, arguments(0), s"test-${UUID.randomUUID}")
    println(files.socket)
    while (System.in.read() >= 0) {}
    files.close()
    directory.delete(None)
  }
}
