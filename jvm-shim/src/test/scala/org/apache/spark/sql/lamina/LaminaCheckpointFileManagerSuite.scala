package org.apache.spark.sql.lamina

import java.io.IOException
import java.net.URI
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Path => JPath}
import java.util.concurrent.{
  CompletableFuture,
  ConcurrentLinkedQueue,
  CountDownLatch,
  Executors,
  TimeUnit,
  TimeoutException
}
import java.util.concurrent.atomic.AtomicInteger

import scala.jdk.CollectionConverters._

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FSDataInputStream, FileStatus, Path, PathFilter, RawLocalFileSystem}
import org.scalatest.concurrent.Eventually._
import org.scalatest.funsuite.AnyFunSuite
import org.scalatest.time.SpanSugar._

import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager
import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.wire.DaemonThreads

final class RecordingFileManager(path: Path, conf: Configuration)
    extends FileSystemBasedCheckpointFileManager(path, conf) {
  override def createAtomic(file: Path, overwriteIfPossible: Boolean): CancellableFSDataOutputStream = {
    RecordingFileManager.written.add(file.getName)
    super.createAtomic(file, overwriteIfPossible)
  }
}

final class FailingFileManager(path: Path, conf: Configuration)
    extends FileSystemBasedCheckpointFileManager(path, conf) {
  throw new IllegalStateException("not today")
}

/** Looks for objects never end, as those of a storage that does not answer. */
final class HangingFileManager(path: Path, conf: Configuration)
    extends FileSystemBasedCheckpointFileManager(path, conf) {
  override def exists(path: Path): Boolean =
    if (path.getName.endsWith(".log")) {
      HangingFileManager.looks.incrementAndGet()
      new CountDownLatch(1).await()
      false
    } else super.exists(path)
}

final class DeniedFileManager(path: Path, conf: Configuration)
    extends FileSystemBasedCheckpointFileManager(path, conf) {
  override def exists(path: Path): Boolean =
    if (path.getName.endsWith(".log")) throw new IOException("you may not") else super.exists(path)
}

/** Says it by an exception of its own, as clients of storages do. */
final class UnconnectedFileManager(path: Path, conf: Configuration)
    extends FileSystemBasedCheckpointFileManager(path, conf) {
  override def exists(path: Path): Boolean =
    if (path.getName.endsWith(".log")) throw new IllegalStateException("no connection") else super.exists(path)
}

/** Answers no look for an object, as a storage that was given up. */
final class SilentFileSystem extends RawLocalFileSystem {
  override def getUri: URI = URI.create("silent://nowhere")

  override def exists(path: Path): Boolean = {
    SilentFileSystem.asked.countDown()
    new CountDownLatch(1).await()
    false
  }
}

object SilentFileSystem {
  val asked = new CountDownLatch(1)
}

object HangingFileManager {
  val looks = new AtomicInteger
}

/** Notes what is asked of the checkpoint's log. */
final class CountingFileManager(path: Path, conf: Configuration)
    extends FileSystemBasedCheckpointFileManager(path, conf) {
  private def count(name: String, path: Path): Unit =
    if (path.toString.contains("/_lamina/log")) CountingFileManager.calls.add(name)

  override def exists(path: Path): Boolean = {
    count("exists", path)
    super.exists(path)
  }

  override def list(path: Path, filter: PathFilter): Array[FileStatus] = {
    count("list", path)
    super.list(path, filter)
  }

  override def open(path: Path): FSDataInputStream = {
    count("open", path)
    super.open(path)
  }
}

object CountingFileManager {
  val calls = new ConcurrentLinkedQueue[String]
}

object RecordingFileManager {
  val written = new ConcurrentLinkedQueue[String]
}

class LaminaCheckpointFileManagerSuite extends AnyFunSuite {

  private val (one, other) = ("0123456789abcdef" * 2, "fedcba9876543210" * 2)

  private def id(log: String, number: Int): String = s"L1.7.1.g.$log-$number.${"a" * 32}"

  private def entry(logs: String*): String = {
    val ids = logs.zipWithIndex.map { case (log, number) => s"""["${id(log, number)}"]""" }
    s"""v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{"0":[${ids.mkString(",")},["L1.7.1.o.-.${"b" * 32}"]]}}"""
  }

  /** A checkpoint, and a file manager of its commit log. */
  private class Checkpoint(
      timeoutMs: Long = 60000L,
      inner: String = "none",
      settings: Map[String, String] = Map.empty
  ) {
    val directory: JPath = Files.createTempDirectory("lamina-barrier-")
    val logs: JPath = Files.createDirectories(directory.resolve("state/_lamina/log"))
    val commits: JPath = Files.createDirectories(directory.resolve("commits"))
    private val conf = new Configuration(false)
    conf.set("spark.sql.streaming.stateStore.lamina.changelog.barrierTimeoutMs", timeoutMs.toString)
    conf.set("spark.sql.streaming.stateStore.lamina.changelog.checkpointFileManagerClass", inner)
    settings.foreach { case (name, value) => conf.set(s"spark.sql.streaming.stateStore.lamina.$name", value) }
    conf.set("fs.silent.impl", classOf[SilentFileSystem].getName)
    val manager = new LaminaCheckpointFileManager(new Path(commits.toUri), conf)

    def write(file: String, text: String, overwrite: Boolean = false): Unit = {
      val stream = manager.createAtomic(new Path(directory.resolve(file).toUri), overwrite)
      stream.write(text.getBytes(UTF_8))
      stream.close()
    }

    def publish(log: String): Unit = {
      Files.write(logs.resolve(s"$log.log"), Array[Byte](1))
      ()
    }

    /** A place of log objects below a directory, as the engine makes it. */
    def place(path: JPath, id: Char, said: Option[String] = None): JPath = {
      val directory = Files.createDirectories(path.resolve(s"uuid/${id.toString * 32}"))
      name(id, said.getOrElse(s"""{"checkpoint":"$directory","crc32":1,"format":1,"url":"$directory"}"""))
      directory
    }

    def name(id: Char, said: String): Unit = {
      Files.write(logs.resolve(s"${id.toString * 32}.at"), said.getBytes(UTF_8))
      ()
    }

    def read(file: String): String = new String(Files.readAllBytes(directory.resolve(file)), UTF_8)

    def has(file: String): Boolean = Files.exists(directory.resolve(file))
  }

  private val threads = Executors.newCachedThreadPool(DaemonThreads("barrier-test"))

  private def begun(work: => Unit): CompletableFuture[Unit] = CompletableFuture.supplyAsync(() => work, threads)

  private def waits(work: CompletableFuture[Unit]): Boolean =
    try {
      work.get(200, TimeUnit.MILLISECONDS)
      false
    } catch { case _: TimeoutException => true }

  test("entries are written by the file manager that the user has set") {
    RecordingFileManager.written.clear()
    val checkpoint = new Checkpoint(inner = classOf[RecordingFileManager].getName)
    checkpoint.publish(one)
    checkpoint.write("commits/7", entry(one))
    assert(checkpoint.read("commits/7") == entry(one))
    assert(RecordingFileManager.written.toArray.toSeq == Seq("7"))
    val none = Seq("no.such.Manager", classOf[String].getName, classOf[LaminaCheckpointFileManager].getName)
    (none :+ classOf[FailingFileManager].getName).foreach { name =>
      val error = intercept[LaminaError](new Checkpoint(inner = name))
      assert(error.kind == LaminaError.SettingsInvalid && error.getMessage.contains(name))
    }
  }

  test("a driver that has just started asks for no object that the entry before names") {
    val (rests, written) = ("0a" * 16, "0b" * 16)
    val checkpoint = new Checkpoint(inner = classOf[CountingFileManager].getName)
    Files.write(checkpoint.commits.resolve("6"), entry(rests).getBytes(UTF_8))
    checkpoint.publish(written)
    CountingFileManager.calls.clear()
    // the one that rests would never be found
    checkpoint.write("commits/7", entry(rests, written))
    assert(checkpoint.read("commits/7") == entry(rests, written))
    assert(CountingFileManager.calls.asScala.count(_ == "exists") == 1)
  }

  test("an entry is written when all log objects that its ids name are there, and not before") {
    val checkpoint = new Checkpoint
    val text = entry(one, other, one)
    val writing = begun(checkpoint.write("commits/7", text))
    assert(waits(writing))
    checkpoint.publish(one)
    assert(waits(writing))
    assert(!checkpoint.has("commits/7"))
    checkpoint.publish(other)
    writing.get(30, TimeUnit.SECONDS)
    assert(checkpoint.read("commits/7") === text)
  }

  test("an entry without log objects, and any other file, is written at once") {
    val checkpoint = new Checkpoint
    checkpoint.write("commits/7", entry())
    checkpoint.write("offsets/7", entry(one))
    checkpoint.write("commits/metadata", entry(one))
    assert(Seq("commits/7", "offsets/7", "commits/metadata").forall(checkpoint.has))
  }

  test("what this process has heard is not looked for") {
    val checkpoint = new Checkpoint
    val log = "1" * 32
    val writing = begun(checkpoint.write("commits/7", entry(log)))
    assert(waits(writing))
    DurableLogs.tell(log, None)
    writing.get(30, TimeUnit.SECONDS)
    assert(checkpoint.has("commits/7"))
  }

  test(
    "a look that hangs holds nobody up who hears of the object, nor another query, and is not repeated beside itself"
  ) {
    HangingFileManager.looks.set(0)
    val hanging = Seq.fill(20)(new Checkpoint(inner = classOf[HangingFileManager].getName))
    val log = "7" * 32
    val writing = hanging.map(checkpoint => begun(checkpoint.write("commits/7", entry(log))))
    assert(waits(writing.head))
    val free = new Checkpoint
    free.publish(one)
    free.write("commits/7", entry(one))
    DurableLogs.tell(log, None)
    writing.foreach(_.get(30, TimeUnit.SECONDS))
    assert(hanging.forall(_.has("commits/7")))
    assert(HangingFileManager.looks.get <= hanging.size)
  }

  test("a storage that does not answer fails the batch in time") {
    val checkpoint = new Checkpoint(timeoutMs = 100L, inner = classOf[HangingFileManager].getName)
    val error = intercept[LaminaError](checkpoint.write("commits/7", entry("8" * 32)))
    assert(error.getMessage.contains("1 of its 1 log objects"))
  }

  test("an object that will not be there fails the batch, unless it is there all the same") {
    val checkpoint = new Checkpoint
    val (lost, written) = ("2" * 32, "3" * 32)
    Seq(lost, written).foreach(DurableLogs.tell(_, Some(new RuntimeException("the engine was killed"))))
    val error = intercept[LaminaError](checkpoint.write("commits/7", entry(lost)))
    assert(error.kind === LaminaError.StorageFailed)
    assert(error.getMessage.contains(lost) && error.getMessage.contains("the engine was killed"))
    assert(error.getMessage.contains("batch 7 ") && error.getMessage.contains("when it is started again"))
    assert(!checkpoint.has("commits/7"))
    checkpoint.publish(written)
    checkpoint.write("commits/7", entry(written))
    assert(checkpoint.has("commits/7"))
  }

  test("what an executor that was lost has accepted may come a moment later") {
    val checkpoint = new Checkpoint
    val (late, never) = ("a8" * 16, "a9" * 16)
    val writers = new Writers(DurableLogs.tell)
    Seq(late, never).foreach(writers.begun(_, "1"))
    writers.lost("1", "decommissioned")
    val writing = begun(checkpoint.write("commits/7", entry(late)))
    assert(waits(writing))
    checkpoint.publish(late)
    writing.get(60, TimeUnit.SECONDS)
    assert(checkpoint.has("commits/7"))
    val error = intercept[LaminaError](checkpoint.write("commits/8", entry(never)))
    assert(error.getMessage.contains("was not written: [engine.lost] executor 1"))
    assert(!checkpoint.has("commits/8"))
  }

  test("a storage that cannot be asked fails the batch in time, and says why") {
    val managers = Seq(classOf[DeniedFileManager] -> "you may not", classOf[UnconnectedFileManager] -> "no connection")
    managers.foreach { case (manager, why) =>
      val checkpoint = new Checkpoint(timeoutMs = 2000L, inner = manager.getName)
      val (one, other) = ("a6" * 16, "a7" * 16)
      checkpoint.publish(one)
      val error = intercept[LaminaError](checkpoint.write("commits/7", entry(one, other)))
      assert(error.getMessage.contains("2 of its 2 log objects") && error.getMessage.contains(why))
      assert(error.getMessage.contains("batch 7 ") && error.getMessage.contains("when it is started again"))
      assert(error.getCause.getMessage === why)
    }
  }

  test("several objects are looked for at once with a file manager of Spark's, and not with one of the user's") {
    def looking: Set[Thread] =
      Thread.getAllStackTraces.keySet.asScala.filter(_.getName.startsWith("lamina-barrier")).toSet
    Seq(classOf[FileSystemBasedCheckpointFileManager] -> true, classOf[RecordingFileManager] -> false).foreach {
      case (manager, several) =>
        val logs = "bcdef".map(letter => s"${if (several) 1 else 2}$letter" * 16)
        val checkpoint = new Checkpoint(inner = manager.getName)
        val before = looking
        val writing = begun(checkpoint.write("commits/7", entry(logs: _*)))
        assert(waits(writing))
        if (several) eventually(timeout(60.seconds))(assert((looking -- before).size > 1))
        else assert((looking -- before).size <= 1)
        logs.foreach(checkpoint.publish)
        writing.get(30, TimeUnit.SECONDS)
    }
  }

  test("an object that nobody writes fails the batch in time, and says which") {
    val checkpoint = new Checkpoint(timeoutMs = 2000L)
    val (one, other) = ("4" * 32, "5" * 32)
    checkpoint.publish(one)
    val error = intercept[LaminaError](checkpoint.write("commits/7", entry(one, other)))
    assert(error.getMessage.contains("1 of its 2 log objects") && error.getMessage.contains(other))
    assert(!checkpoint.has("commits/7"))
  }

  test("an entry that is given up is not written") {
    val checkpoint = new Checkpoint
    val stream = checkpoint.manager.createAtomic(new Path(checkpoint.commits.resolve("7").toUri), false)
    stream.write(entry().getBytes(UTF_8))
    stream.cancel()
    stream.close()
    assert(!checkpoint.has("commits/7"))
  }

  test("an entry that is there is not replaced") {
    val checkpoint = new Checkpoint
    checkpoint.write("commits/7", entry())
    intercept[Exception](checkpoint.write("commits/7", entry() + " "))
    assert(checkpoint.read("commits/7") === entry())
  }

  test("the interruption of a query that is stopped ends the wait") {
    val checkpoint = new Checkpoint
    val one = "6" * 32
    val outcome = new CompletableFuture[Throwable]
    val thread = new Thread(() =>
      outcome.complete(intercept[Throwable](checkpoint.write("commits/7", entry(one))))
    )
    thread.start()
    Thread.sleep(100)
    thread.interrupt()
    assert(outcome.get(30, TimeUnit.SECONDS).isInstanceOf[InterruptedException])
    assert(!checkpoint.has("commits/7"))
  }

  private def published(place: JPath, log: String): Unit = {
    Files.write(place.resolve(s"$log.log"), Array[Byte](1))
    ()
  }

  test("objects are waited for in the place that is set") {
    val path = Files.createTempDirectory("lamina-place-")
    val checkpoint = new Checkpoint(settings = Map("changelog.path" -> s"$path/"))
    val (early, late) = ("a1" * 16, "a2" * 16)
    val writing = begun(checkpoint.write("commits/7", entry(early, late)))
    assert(waits(writing))
    val place = checkpoint.place(path, 'a')
    published(place, early)
    assert(waits(writing))
    published(place, late)
    writing.get(30, TimeUnit.SECONDS)
    assert(checkpoint.has("commits/7"))
  }

  test("an object of a store that rests is found where objects were before") {
    val (path, before, other) =
      (
        Files.createTempDirectory("lamina-place-"),
        Files.createTempDirectory("lamina-before-"),
        Files.createTempDirectory("lamina-other-")
      )
    Seq(Map("changelog.path" -> path.toString), Map.empty[String, String]).zipWithIndex.foreach { case (set, number) =>
      val checkpoint = new Checkpoint(settings = set ++ Map("storage.roots" -> s"$other,$before"))
      val logs = (1 to 4).map(one => s"b$number$one$one" * 8)
      checkpoint.publish(logs.head)
      published(checkpoint.place(before, 'b'), logs(1))
      published(checkpoint.place(other, 'c'), logs(2))
      if (set.isEmpty) checkpoint.publish(logs(3)) else published(checkpoint.place(path, 'd'), logs(3))
      checkpoint.write("commits/7", entry(logs: _*))
      assert(checkpoint.has("commits/7"))
    }
  }

  test("a place that was given up, and hangs, holds up no object that comes where objects are written to") {
    val (late, never) = ("e1" * 16, "e2" * 16)
    def checkpoint(timeoutMs: Long): Checkpoint = {
      val made = new Checkpoint(
        timeoutMs,
        classOf[FileSystemBasedCheckpointFileManager].getName,
        Map("storage.roots" -> "silent://nowhere/given-up")
      )
      made.name('f', s"""{"format":1,"url":"silent://nowhere/given-up/uuid/${"f" * 32}"}""")
      made
    }
    val goesOn = checkpoint(120000L)
    val writing = begun(goesOn.write("commits/7", entry(late)))
    assert(SilentFileSystem.asked.await(60, TimeUnit.SECONDS))
    goesOn.publish(late)
    writing.get(60, TimeUnit.SECONDS)
    val error = intercept[LaminaError](checkpoint(1500L).write("commits/7", entry(never)))
    assert(error.getMessage.contains("1 of its 1 log objects") && error.getMessage.contains("does not answer"))
  }

  test("a place that no setting names is not asked, and one of which nothing is known hides no other") {
    val foreign = Files.createTempDirectory("lamina-foreign-")
    val checkpoint = new Checkpoint(timeoutMs = 1500L)
    val (there, log) = ("c1" * 16, "c2" * 16)
    checkpoint.place(foreign, 'a', Some("nothing"))
    checkpoint.place(foreign, 'b', Some(s"""{"format":2,"url":"$foreign/uuid/${"b" * 32}"}"""))
    published(checkpoint.place(foreign, 'c'), log)
    checkpoint.publish(there)
    val error = intercept[LaminaError](checkpoint.write("commits/7", entry(there, log)))
    assert(error.getMessage.contains(log) && error.getMessage.contains("1 of its 2 log objects"))
    val named = new Checkpoint(settings = Map("storage.roots" -> foreign.toUri.toString))
    published(named.place(foreign, 'd'), log)
    named.write("commits/7", entry(log))
  }

  test("what is waited for is looked for in one place, and the places are listed once") {
    val path = Files.createTempDirectory("lamina-place-")
    Seq(Map("changelog.path" -> path.toString), Map.empty[String, String]).zipWithIndex.foreach { case (set, number) =>
      CountingFileManager.calls.clear()
      val checkpoint = new Checkpoint(inner = classOf[CountingFileManager].getName, settings = set)
      val place = if (set.isEmpty) checkpoint.logs else checkpoint.place(path, 'e')
      (1 to 3).foreach { batch =>
        val log = s"d$number$batch$batch" * 8
        published(place, log)
        checkpoint.write(s"commits/$batch", entry(log))
      }
      val calls = CountingFileManager.calls.toArray.toSeq
      if (set.isEmpty) assert(calls == Seq.fill(3)("exists"))
      else assert(calls == Seq("exists", "list", "open"))
    }
  }
}
