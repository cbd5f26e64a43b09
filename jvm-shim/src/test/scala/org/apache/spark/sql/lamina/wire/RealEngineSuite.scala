package org.apache.spark.sql.lamina.wire

import java.nio.file.{Files, Path, Paths}
import java.util.concurrent.TimeUnit

import scala.jdk.CollectionConverters._
import scala.util.{Random, Using}

import org.json4s.{JObject, JValue}
import org.json4s.JsonAST.{JInt, JNull, JString}
import org.json4s.JsonDSL._

import org.apache.spark.sql.lamina.RepositoryEngine
import org.apache.spark.sql.lamina.errors.LaminaError

/** The engine of this repository: a store is written, read, damaged and lost through the wire. */
class RealEngineSuite extends EngineFixture {
  private val random = new Random(11)

  private def settings(tempDir: Path = Paths.get(peer.settings().tempDir)): ProcessSettings =
    peer.settings(tempDir = tempDir).copy(pythonPath = Seq(RepositoryEngine.sources.toString))

  private def open(engine: Engine, checkpoint: Path): Int = {
    val answer = engine.call(
      "openStore",
      ("store" -> ("operator" -> 0) ~ ("partition" -> 0) ~ ("name" -> "default")) ~
        ("url" -> checkpoint.resolve("state").toUri.toString) ~ ("settings" -> JObject()) ~ ("hadoop" -> JObject()) ~
        ("run_id" -> "run") ~ ("read_only" -> false) ~ ("format_version" -> 2) ~ ("minVersionsToRetain" -> 2) ~
        ("spark" -> "4.3.0")
    )
    answer \ "handle" match {
      case JInt(handle) => handle.toInt
      case other => fail(s"no handle: $other")
    }
  }

  private def begin(engine: Engine, handle: Int, version: Int, base: Option[String]): JValue =
    engine.call(
      "begin",
      Int.box(handle),
      ("version" -> version) ~ ("attempt" -> base.fold[JValue](JNull)(JString(_))) ~ ("task_attempt" -> 1) ~
        ("load_empty" -> false) ~ ("force_snapshot" -> false) ~ ("have" -> (version > 0))
    )

  /** Commits `entries` as version + 1 and returns the attempt and the file. */
  private def commit(
      engine: Engine,
      handle: Int,
      version: Int,
      base: Option[String],
      entries: Seq[Entry]
  ): (String, String) = {
    val begun = begin(engine, handle, version, base)
    val JString(attempt) = begun \ "attempt": @unchecked
    val family = ("id" -> 0) ~ ("name" -> "default") ~ ("internal" -> false) ~ ("key_schema" -> "{}") ~
      ("value_schema" -> "{}") ~ ("encoder" -> ("keyStateEncoderType" -> "NoPrefixKeyStateEncoderSpec")) ~
      ("encoding" -> "unsaferow") ~ ("multi_value" -> false) ~ ("row_checksum" -> false) ~ ("key_bytes" -> "row") ~
      ("value_bytes" -> "row") ~ ("partition_key" -> ("kind" -> "key"))
    val baseJson: JValue =
      if (version == 0) JNull else ("version" -> version) ~ ("attempt" -> base)
    val answer = engine.commit(
      ("handle" -> handle) ~ ("attempt" -> attempt) ~ ("version" -> (version + 1)) ~ ("base" -> baseJson) ~
        ("rows" -> ("increment" -> entries.size)) ~ ("task_attempt" -> 1) ~
        ("counts" -> ("0" -> ("rows" -> entries.size) ~ ("bytes" -> 0))) ~ ("column_families" -> List(family)) ~
        ("next_column_family" -> 1),
      Seq("increment" -> Entry.fill(entries) _)
    ).await()
    val JString(file) = answer \ "file": @unchecked
    (attempt, file)
  }

  private def load(engine: Engine, handle: Int, version: Int, attempt: String): Map[Seq[Byte], Seq[Byte]] = {
    val rows = Map.newBuilder[Seq[Byte], Seq[Byte]]
    engine.load(
      ("op" -> "load") ~ ("handle" -> handle) ~ ("version" -> version) ~ ("attempt" -> attempt) ~ ("have" -> JNull) ~
        ("read_only" -> true)
    )(_ => ()) { (_, _, _, key, keyLength, _, value, valueLength) =>
      rows += Entry.bytes(key, keyLength) -> Entry.bytes(value, valueLength)
    }
    rows.result()
  }

  private def entries(sizes: Int*): Seq[Entry] =
    sizes.map(size => Entry(0, 1, random.nextBytes(16), random.nextBytes(size)))

  private def rows(entries: Seq[Entry]): Map[Seq[Byte], Seq[Byte]] = entries.map(e => e.key -> e.value).toMap

  private def checkpoint(): Path = Files.createDirectories(Files.createTempDirectory(peer.root, "checkpoint-"))

  private def find(under: Path, name: String): Path =
    Using.resource(Files.walk(under))(_.iterator.asScala.find(_.getFileName.toString == name)).getOrElse(
      fail(s"no file $name under $under")
    )

  /** The engine and its maintenance process. */
  private def processes(engine: Engine): Seq[ProcessHandle] = {
    val parent = ProcessHandle.of(engine.pid).get
    parent +: parent.descendants.iterator.asScala.toSeq
  }

  test("a version that was committed is loaded again, by the same engine and by the next") {
    val directory = checkpoint()
    val first = entries(0, 1, 100, 1 << 20, 3 << 20)
    val second = entries(5, 7)
    val engine = Engine.get(settings())
    val handle = open(engine, directory)
    val (one, _) = commit(engine, handle, 0, None, first)
    val (two, _) = commit(engine, handle, 1, Some(one), second)
    assert(load(engine, handle, 1, one) == rows(first))
    assert(load(engine, handle, 2, two) == rows(first ++ second))
    Engine.shutdown()
    val next = Engine.get(settings())
    assert(load(next, open(next, directory), 2, two) == rows(first ++ second))
    assert(kindOf(next.call("resolve", Int.box(99), "{}")) == LaminaError.StoreClosed)
  }

  test("a value of 64 MiB is committed and loaded") {
    val engine = Engine.get(settings())
    val handle = open(engine, checkpoint())
    val large = entries(10, 64 << 20, 0)
    val (attempt, _) = commit(engine, handle, 0, None, large)
    assert(load(engine, handle, 1, attempt) == rows(large))
  }

  test("a damaged file is named in the error") {
    val directory = checkpoint()
    val engine = Engine.get(settings())
    val (attempt, file) = commit(engine, open(engine, directory), 0, None, entries(100, 200))
    Engine.shutdown()
    val path = find(directory, Paths.get(file).getFileName.toString)
    val bytes = Files.readAllBytes(path)
    bytes(100) = (bytes(100) ^ 1).toByte
    Files.write(path, bytes)
    val next = Engine.get(settings())
    val error = intercept[LaminaError](load(next, open(next, directory), 1, attempt))
    assert(error.kind == LaminaError.FileDamaged && error.getMessage.contains(path.getFileName.toString))
    next.ping()
  }

  test("nothing is left after a stop or a kill: no process, no socket, no directory, also with long paths") {
    val long = Files.createDirectories(peer.root.resolve("n" * 100).resolve("o" * 100))
    for (tempDir <- Seq(Paths.get(peer.settings().tempDir), long); killed <- Seq(false, true)) {
      val engine = Engine.get(settings(tempDir))
      engine.ping()
      val all = processes(engine)
      assert(all.size > 1)
      if (killed) all.head.destroyForcibly()
      Engine.shutdown()
      all.foreach(_.onExit.get(10, TimeUnit.SECONDS))
      assert(Using.resource(Files.list(tempDir))(_.count()) == 0)
    }
  }

  test("an engine killed while commits run is lost, and the next one finds the last good version") {
    val directory = checkpoint()
    val engine = Engine.get(settings())
    val handle = open(engine, directory)
    val first = entries(10, 20)
    val (attempt, _) = commit(engine, handle, 0, None, first)
    val killer = new Thread(() => {
      Thread.`yield`()
      ProcessHandle.of(engine.pid).ifPresent { process => process.destroyForcibly(); () }
    })
    val error = intercept[LaminaError] {
      while (true) {
        if (killer.getState == Thread.State.NEW) killer.start()
        commit(engine, handle, 1, Some(attempt), entries(5 << 20, 5 << 20))
      }
    }
    killer.join()
    assert(error.kind == LaminaError.EngineLost)
    val next = Engine.get(settings())
    assert(next.generation > engine.generation)
    assert(load(next, open(next, directory), 1, attempt) == rows(first))
  }
}
