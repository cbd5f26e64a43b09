package org.apache.spark.sql.lamina

import java.io.File
import java.nio.charset.StandardCharsets.ISO_8859_1
import java.nio.file.{Files, Path}

import scala.jdk.CollectionConverters._

import org.rocksdb.RocksDB
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.table.BelowEntries
import org.apache.spark.unsafe.Platform

/** Changes of a transaction on the local disk, in RocksDB itself. */
class SpillDatabaseSuite extends AnyFunSuite {
  // it unpacks a library into the temporary directory
  RocksDB.loadLibrary()

  private val Base = Platform.BYTE_ARRAY_OFFSET.toLong

  /** Runs with a directory in place of Spark's. */
  private def in[A](root: Path)(work: => A): A = {
    val before = System.getProperty("java.io.tmpdir")
    System.setProperty("java.io.tmpdir", root.toString)
    try work
    finally {
      System.setProperty("java.io.tmpdir", before)
      ()
    }
  }

  private def newRoot(): Path = Files.createTempDirectory("lamina-spill-test-")

  private def files(root: Path): Seq[File] = Files.walk(root).iterator.asScala.map(_.toFile).filter(_.isFile).toSeq

  private def bytes(text: String): Array[Byte] = text.getBytes(ISO_8859_1)

  private def put(spill: SpillDatabase, family: Int, key: String, entry: String): Unit = {
    val length = key.length
    val address = Platform.allocateMemory(length.toLong + 1)
    try {
      Platform.copyMemory(bytes(key), Base, null, address, length.toLong)
      spill.put(family, address, length, bytes(entry))
    } finally Platform.freeMemory(address)
  }

  private def get(spill: SpillDatabase, family: Int, key: String): Option[String] =
    Option(spill.get(family, bytes(key), Base, key.length)).map(new String(_, ISO_8859_1))

  private def all(spill: SpillDatabase, family: Int): Seq[(String, String)] = {
    val entries = new BelowEntries
    var (found, last) = (Vector.empty[(String, String)], null: Array[Byte])
    while (!entries.isLast) {
      entries.clear()
      spill.read(family, last, above = last != null, null, entries)
      for (i <- 0 until entries.count) {
        last = entries.keys(i)
        found :+= new String(last, ISO_8859_1) -> new String(entries.values(i), ISO_8859_1)
      }
    }
    found
  }

  test("the last entry of each key is there, in the order of keys and by column family, flushed or not") {
    val root = newRoot()
    val spill = in(root)(SpillDatabase.open())
    val keys = scala.util.Random.shuffle((0 until 3000).map(i => f"$i%05d"))
    keys.foreach(put(spill, 7, _, "old"))
    put(spill, 8, "", "of another family")
    spill.flush()
    keys.take(1000).foreach(put(spill, 7, _, "new"))
    for (_ <- 1 to 2) {
      val expected = keys.zipWithIndex.map { case (key, at) => key -> (if (at < 1000) "new" else "old") }.sorted
      assert(all(spill, 7) == expected)
      assert(all(spill, 8) == Seq("" -> "of another family"))
      assert(all(spill, 6).isEmpty)
      assert(get(spill, 7, keys.head).contains("new") && get(spill, 8, keys.head).isEmpty)
      spill.flush()
    }
    assert(spill.bytes > 0)
    spill.close()
    assert(files(root).isEmpty)
  }

  test("nothing is left where it is closed by a thread that is interrupted") {
    val root = newRoot()
    val spill = in(root)(SpillDatabase.open())
    put(spill, 0, "k", "v")
    Thread.currentThread.interrupt()
    try spill.close()
    finally Thread.interrupted()
    assert(files(root).isEmpty)
  }

  test("a directory that cannot be had is named in the error, with what to do") {
    val missing = newRoot().resolve("missing")
    val error = intercept[LaminaError](in(missing)(SpillDatabase.open()))
    assert(error.kind == LaminaError.StorageFailed)
    assert(error.getMessage.contains(missing.toString) && error.getMessage.contains("spark.local.dir"))
  }

  test("a damaged file is an error that names the directory, and is remembered") {
    val root = newRoot()
    val spill = in(root)(SpillDatabase.open())
    try {
      (0 until 2000).foreach(i => put(spill, 0, f"$i%05d", scala.util.Random.nextString(50)))
      spill.flush()
      val table = files(root).find(_.getName.endsWith(".sst")).get
      val content = Files.readAllBytes(table.toPath)
      for (at <- 0 until content.length / 2) content(at) = (content(at) ^ 0x55).toByte
      Files.write(table.toPath, content)
      assert(!spill.isBroken)
      val error = intercept[LaminaError](all(spill, 0))
      assert(error.kind == LaminaError.StorageFailed && error.getMessage.contains(table.getParent))
      assert(spill.isBroken)
    } finally spill.close()
  }
}
