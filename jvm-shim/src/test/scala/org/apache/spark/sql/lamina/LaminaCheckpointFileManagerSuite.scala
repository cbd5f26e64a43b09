package org.apache.spark.sql.lamina

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

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.scalatest.funsuite.AnyFunSuite

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

object HangingFileManager {
  val looks = new AtomicInteger
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
  private class Checkpoint(timeoutMs: Long = 60000L, inner: String = "none") {
    val directory: JPath = Files.createTempDirectory("lamina-barrier-")
    val logs: JPath = Files.createDirectories(directory.resolve("state/_lamina/log"))
    val commits: JPath = Files.createDirectories(directory.resolve("commits"))
    private val conf = new Configuration(false)
    conf.set("spark.sql.streaming.stateStore.lamina.changelog.barrierTimeoutMs", timeoutMs.toString)
    conf.set("spark.sql.streaming.stateStore.lamina.changelog.checkpointFileManagerClass", inner)
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
    assert(!checkpoint.has("commits/7"))
    checkpoint.publish(written)
    checkpoint.write("commits/7", entry(written))
    assert(checkpoint.has("commits/7"))
  }

  test("an object that nobody writes fails the batch in time, and says which") {
    val checkpoint = new Checkpoint(timeoutMs = 100L)
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
}
