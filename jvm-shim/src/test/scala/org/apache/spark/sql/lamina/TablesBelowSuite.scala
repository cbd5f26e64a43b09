package org.apache.spark.sql.lamina

import java.nio.ByteBuffer
import java.nio.charset.StandardCharsets.ISO_8859_1
import java.nio.file.{Files, Path}
import java.nio.file.attribute.UserDefinedFileAttributeView

import scala.jdk.CollectionConverters._

import org.rocksdb.{FlushOptions, Options, RocksDB}
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.unsafe.Platform

/** Tables that are read where they are. */
class TablesBelowSuite extends AnyFunSuite {
  RocksDB.loadLibrary()

  private def key(number: Int): Array[Byte] = f"$number%06d".getBytes(ISO_8859_1)

  private def newDatabase(): Path = {
    val directory = Files.createTempDirectory("lamina-below-test-")
    val options = new Options().setCreateIfMissing(true)
    val database = RocksDB.open(options, directory.toString)
    for (i <- 0 until 5000)
      database.put(LocalDatabase.keyOf(0, key(i), Platform.BYTE_ARRAY_OFFSET.toLong, 6), Array.fill(40)(i.toByte))
    database.flush(new FlushOptions().setWaitForFlush(true))
    database.close()
    options.close()
    directory
  }

  private def tables(directory: Path): Seq[Path] =
    Files.list(directory).iterator.asScala.filter(_.toString.endsWith(".sst")).toSeq

  private def marks(file: Path): UserDefinedFileAttributeView =
    Files.getFileAttributeView(file, classOf[UserDefinedFileAttributeView])

  private def get(database: TablesBelow, number: Int): Array[Byte] =
    database.get(0, key(number), Platform.BYTE_ARRAY_OFFSET.toLong, 6)

  test("a damaged block is an error, and files that were verified are distrusted under all of their names") {
    val directory = newDatabase()
    val table = tables(directory).head
    assume(Files.getFileStore(table).supportsFileAttributeView(classOf[UserDefinedFileAttributeView]))
    // the database removes its directory when it is closed: the copy, under another name, stays
    val copy = Files.createLink(Files.createTempDirectory("lamina-copies-test-").resolve("copy"), table)
    marks(copy).write("lamina.verified", ByteBuffer.wrap("so and so".getBytes(ISO_8859_1)))
    val database = TablesBelow.open(InPlace(directory.toString, 1L, None))
    try {
      assert(get(database, 7).toSeq == Seq.fill(40)(7.toByte))
      assert(marks(copy).list.asScala == Seq("lamina.verified"))
      val content = Files.readAllBytes(table)
      for (at <- content.length / 4 until content.length / 2) content(at) = (content(at) ^ 0x55).toByte
      Files.write(table, content)
      val error = intercept[LaminaError]((0 until 5000).foreach(get(database, _)))
      assert(error.kind == LaminaError.FileDamaged && error.getMessage.contains(directory.toString))
      assert(database.isBroken)
      assert(marks(copy).list.asScala == Seq("lamina.distrusted"))
    } finally database.close()
    assert(!Files.exists(directory) && Files.exists(copy))
  }
}
