package org.apache.spark.sql.lamina.wire

import java.nio.file.{Files, Path, Paths}
import java.nio.file.attribute.PosixFilePermissions
import java.util.concurrent.{CountDownLatch, TimeUnit}

import scala.concurrent.{Await, ExecutionContext, Future}
import scala.concurrent.duration._
import scala.jdk.CollectionConverters._
import scala.util.{Try, Using}

import org.json4s.{JObject, JValue}
import org.json4s.JsonAST.{JInt, JNothing, JString}
import org.json4s.JsonDSL._
import org.scalatest.concurrent.Eventually.{eventually, interval, timeout}

import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.table.EntrySink

/** The life of an engine process: start, requests that fail in every way, death, and what is left behind. */
class EngineSuite extends EngineFixture {
  private val one = Seq(Entry(0, 1, Array[Byte](1), Array[Byte](2)))

  private val odd = Map("of the engine" -> "9")

  private def kill(engine: Engine): Unit = {
    val handle = ProcessHandle.of(engine.pid).get
    handle.destroyForcibly()
    handle.onExit.get(10, TimeUnit.SECONDS)
    ()
  }

  test("there is one process for all callers, in a directory that only this user can read") {
    val engines = {
      implicit val pool: ExecutionContext = ExecutionContext.global
      Await.result(Future.sequence((1 to 8).map(_ => Future(Engine.get(peer.settings())))), 60.seconds)
    }
    assert(engines.map(_.pid).distinct.size == 1)
    assert(peer.leftBehind.map(path => PosixFilePermissions.toString(Files.getPosixFilePermissions(path))) ==
      Seq("rwx------"))
    engines.head.ping()
  }

  test("an engine that was started ahead is that of the first store, and ends where none came") {
    Engine.startAhead(peer.settings())
    val ahead = peer.leftBehind
    assert(ahead.size == 1)
    Engine.startAhead(peer.settings(connections = 3))
    assert(peer.leftBehind == ahead)
    val engine = Engine.get(peer.settings())
    assert(peer.leftBehind == ahead)
    Engine.endAhead()
    engine.ping()
    assert(kindOf(Engine.get(peer.settings(connections = 3, raw = odd))) == LaminaError.SettingsConflict)
    Engine.shutdown()
    Engine.startAhead(peer.settings())
    Engine.endAhead()
    assert(peer.leftBehind.isEmpty)
  }

  test("the first store's settings count, and not those that an engine was started ahead with") {
    Engine.startAhead(peer.settings())
    val ahead = peer.leftBehind
    // what a store that asks before has fixed of the JVM stays
    assert(!Engine.mayChange)
    val engine = Engine.get(peer.settings(raw = odd))
    assert(peer.leftBehind.size == 1 && peer.leftBehind != ahead)
    engine.ping()
    assert(kindOf(Engine.get(peer.settings(raw = odd.map { case (key, _) => key -> "8" }))) ==
      LaminaError.SettingsConflict)
  }

  test("an engine that cannot be started ahead is started with the first store's settings") {
    assert(kindOf(Engine.startAhead(peer.settings().copy(python = "/no/such/python"))) == LaminaError.EngineStart)
    Engine.get(peer.settings()).ping()
  }

  test("a control call carries texts and integers, and an error of the engine becomes ours") {
    val engine = Engine.get(peer.settings())
    val answer = engine.call("begin", Long.box(5000000000L), ("text" -> "ü\n\"\\ \u2028") ~ ("n" -> 3))
    assert(answer \ "handle" == JInt(5000000000L))
    assert(answer \ "argument" \ "text" == JString("ü\n\"\\ \u2028"))
    val error = intercept[LaminaError](engine.call("closeStore", Int.box(7)))
    assert(error.kind == LaminaError.StoreClosed && error.getMessage.contains("no store 7"))
    val raise: JObject = "peer" -> "raise"
    assert(kindOf(engine.call("begin", Int.box(1), raise)) == LaminaError.EngineProtocol)
    assert(engine.call("begin", Int.box(1), "{}") \ "handle" == JInt(1))
  }

  test("many threads call and commit at once over few connections, and sockets do not outlive their use") {
    val engine = Engine.get(peer.settings(connections = 3))
    val threads = (1 to 12).map { number =>
      val failures = new java.util.concurrent.ConcurrentLinkedQueue[Throwable]
      val thread = new Thread(() =>
        try (1 to 30).foreach { round =>
            engine.call("begin", Int.box(number), ("round" -> round): JObject)
            val pending = (1 to 4).map(_ =>
              engine.commit(("handle" -> (100 + number)): JObject, Seq("increment" -> Entry.fill(one) _))
            )
            pending.foreach(_.await())
          }
        catch { case error: Throwable => failures.add(error); () }
      )
      thread.start()
      (thread, failures)
    }
    threads.foreach(_._1.join(60000L))
    threads.foreach { case (_, failures) => assert(failures.asScala.toList == Nil) }
    assert(engine.connections._1 <= 3 && engine.connections._2 == 0)
  }

  test("a commit that is not awaited does not keep the only connection from the next") {
    val engine = Engine.get(peer.settings(connections = 1))
    val pending = (1 to 5).map(_ => engine.commit(header, Seq("increment" -> Entry.fill(one) _)))
    pending.reverse.foreach(_.await())
    assert(pending.head.await() == pending.head.await())
  }

  test("who finds no connection free gives up at the deadline") {
    val engine = Engine.get(peer.settings(connections = 1, requestTimeoutMs = 3000))
    val entered = new CountDownLatch(1)
    val leave = new CountDownLatch(1)
    commit(engine, one)
    val reader = new Thread(() => {
      Try(engine.load(header)(_ => { entered.countDown(); leave.await() })((_, _, _, _, _, _, _, _) => ()))
      ()
    })
    reader.start()
    entered.await()
    assert(kindOf(commit(engine, one)) == LaminaError.EngineDeadline)
    leave.countDown()
    reader.join()
  }

  test("an engine that never answers runs into the deadline, and later requests work") {
    val engine = Engine.get(peer.settings(requestTimeoutMs = 3000))
    assert(kindOf(commit(engine, one, "hang")) == LaminaError.EngineDeadline)
    assert(kindOf(engine.call("begin", Int.box(1), ("peer" -> "hang"): JObject)) ==
      LaminaError.EngineDeadline)
    commit(engine, one)
    assert(loaded(engine) == one)
  }

  private def accepted(engine: Engine, peerDoes: String): PendingCommit =
    engine.commit(header ~ ("peer" -> peerDoes), Seq("increment" -> Entry.fill(one) _))

  test("a commit is accepted under the id that the engine gives it, and its connection is free before it is durable") {
    val engine = Engine.get(peer.settings(connections = 1))
    val pending = accepted(engine, "accept")
    assert(pending.attempt == "a-accepted" && !pending.isDone)
    assert(engine.connections == ((1, 0)))
    commit(engine, one)
    assert(loaded(engine) == one)
    assert(!pending.isDone && engine.pendingCommits == 1)
  }

  test(
    "hundreds of commits wait for their outcomes without a connection or a thread of their own, and each gets its own"
  ) {
    val engine = Engine.get(peer.settings(connections = 2))
    accepted(engine, "accept").cancel()
    val threads = liveEngineThreads
    val pending = (1 to 300).map(_ => accepted(engine, "accept"))
    assert(engine.pendingCommits == 301 && pending.forall(!_.isDone))
    assert(engine.connections == ((1, 0)))
    assert(liveEngineThreads.diff(threads).isEmpty)
    commit(engine, one, "tell")
    val outcomes = pending.map(one => one.requestId -> Try(one.await() \ "file"))
    val (failed, durable) = outcomes.partition(_._2.isFailure)
    assert(durable.forall { case (id, file) => file.get == JString(s"$id") })
    assert(failed.map { case (id, error) => error.failed.get.getMessage.contains(s"file $id") } == Seq(true))
    eventually(timeout(Patience))(assert(engine.pendingCommits == 0))
  }

  test("an outcome that comes before the acceptance counts") {
    val pending = accepted(Engine.get(peer.settings()), "outcome-first")
    assert(pending.await() \ "file" == JString("f"))
  }

  test(
    "a commit that was accepted and has no outcome fails at the deadline, and is cancelled, whether or not anybody waits"
  ) {
    val engine = Engine.get(peer.settings(requestTimeoutMs = 3000))
    val pending = accepted(engine, "accept")
    eventually(timeout(Patience), interval(5.millis))(assert(pending.isDone && engine.pendingCommits == 0))
    assert(kindOf(pending.await()) == LaminaError.EngineDeadline)
    eventually(timeout(Patience))(assert(engine.call("stats") \ "cancelled" == JInt(1)))
  }

  test("when the stream of outcomes breaks off all commits that wait fail, and the next one opens another stream") {
    val engine = Engine.get(peer.settings())
    val pending = (1 to 3).map(_ => accepted(engine, "accept"))
    Try(commit(engine, one, "break-stream"))
    pending.foreach(one => assert(kindOf(one.await()) == LaminaError.EngineProtocol))
    eventually(timeout(Patience))(assert(accepted(engine, "outcome-first").await() \ "file" == JString("f")))
  }

  test("a commit whose task is killed before it is accepted stops waiting, and is cancelled") {
    val engine = Engine.get(peer.settings())
    @volatile var isKilled = false
    val sent = new CountDownLatch(1)
    var outcome: Try[Any] = null
    val increment = "increment" -> ((sink: EntrySink) => { Entry.fill(one)(sink); sent.countDown() })
    val task = new Thread(() =>
      outcome = Try(engine.commit(() => header ~ ("peer" -> "hang"), Seq(increment), () => isKilled))
    )
    task.start()
    sent.await()
    isKilled = true
    task.join(Patience.toMillis)
    assert(outcome.failed.get.asInstanceOf[LaminaError].kind == LaminaError.EngineCancelled)
    eventually(timeout(Patience))(assert(engine.call("stats") \ "cancelled" == JInt(1)))
  }

  test("a cancelled commit says so") {
    val engine = Engine.get(peer.settings())
    val pending = engine.commit(header ~ ("peer" -> "wait"), Seq("increment" -> Entry.fill(one) _))
    pending.cancel()
    assert(kindOf(pending.await()) == LaminaError.EngineCancelled)
  }

  test("an interrupted thread stops waiting, and the commit goes on for whoever asks next") {
    val engine = Engine.get(peer.settings())
    val pending = engine.commit(header ~ ("peer" -> "wait"), Seq("increment" -> Entry.fill(one) _))
    var outcome: Throwable = null
    val waiter = new Thread(() =>
      try pending.await()
      catch { case error: Throwable => outcome = error }
    )
    waiter.start()
    waiter.interrupt()
    waiter.join(Patience.toMillis)
    assert(outcome.isInstanceOf[InterruptedException])
    engine.ping()
    assert(!pending.isDone)
    pending.cancel()
    assert(kindOf(pending.await()) == LaminaError.EngineCancelled)
  }

  test("an error of a commit is thrown by await, or by commit where the engine refuses to read on") {
    val engine = Engine.get(peer.settings())
    assert(kindOf(commit(engine, one, "fail")) == LaminaError.StorageDenied)
    val large = (0 until 200).map(_ => Entry(0, 1, Array[Byte](1), new Array[Byte](300000)))
    assert(kindOf(commit(engine, large, "refuse")) == LaminaError.StateBase)
    commit(engine, one)
    assert(loaded(engine) == one)
  }

  test("a failure of the caller's own code passes through and costs one connection only") {
    val engine = Engine.get(peer.settings())
    commit(engine, one)
    val boom = new IllegalStateException("boom")
    assert(intercept[IllegalStateException](
      engine.load(header)(_ => ())((_, _, _, _, _, _, _, _) => throw boom)
    ) eq boom)
    assert(intercept[IllegalStateException](engine.commit(header, Seq("increment" -> (_ => throw boom)))) eq boom)
    assert(loaded(engine) == one)
  }

  test("a request that nobody waits for any more is cancelled in the engine, and one that it has refused is not") {
    val engine = Engine.get(peer.settings(requestTimeoutMs = 3000L))
    def cancelled: JValue = engine.call("stats") \ "cancelled"
    def becomes(count: Int): Unit = { eventually(timeout(Patience))(assert(cancelled == JInt(count))); () }
    commit(engine, one)
    assert(kindOf(commit(engine, one, "fail")) == LaminaError.StorageDenied)
    becomes(0)
    def stalled(): Unit =
      engine.feed(header ~ ("op" -> "feed") ~ ("peer" -> "stall"))(_ => ())((_, _, _, _, _, _, _) => ())
    assert(kindOf(stalled()) == LaminaError.EngineDeadline)
    becomes(1)
    val started = new CountDownLatch(1)
    val reader = new Thread(() =>
      Try(engine.feed(header ~ ("op" -> "feed") ~ ("peer" -> "stall"))(_ => started.countDown())(
        (_, _, _, _, _, _, _) => ()
      ))
    )
    reader.start()
    assert(started.await(Patience.toSeconds, TimeUnit.SECONDS))
    reader.interrupt()
    reader.join(Patience.toMillis)
    becomes(2)
    intercept[IllegalStateException](engine.feed(header)(_ => throw new IllegalStateException("boom"))(
      (_, _, _, _, _, _, _) => ()
    ))
    becomes(3)
  }

  test("a response that breaks off fails with the engine's reason, or its last words") {
    val engine = Engine.get(peer.settings())
    commit(engine, (0 until 100).map(_ => Entry(0, 1, Array[Byte](1), new Array[Byte](300000))))
    val error = intercept[LaminaError](loaded(engine, "break"))
    assert(error.kind == LaminaError.EngineProtocol && error.getMessage.contains("the file is damaged"))
    assert(kindOf(loaded(engine, "damage")) == LaminaError.FileDamaged)
  }

  Seq(
    "die" -> "in the middle of a commit",
    "die-before-answer" -> "before it has accepted a commit",
    "die-after-acceptance" -> "after it has accepted a commit"
  ).foreach {
    case (peerDoes, moment) =>
      test(s"an engine killed $moment is lost at once, its directory goes, and the next one has a new generation") {
        val engine = Engine.get(peer.settings())
        val large = (0 until 100).map(_ => Entry(0, 1, Array[Byte](1), new Array[Byte](300000)))
        val error = intercept[LaminaError](commit(engine, large, peerDoes))
        assert(error.kind == LaminaError.EngineLost && error.getMessage.contains("SIGKILL"))
        assert(kindsOf(error) == Set(LaminaError.EngineLost))
        assert(!engine.isAlive)
        val later = intercept[LaminaError](engine.ping())
        assert(later.kind == LaminaError.EngineLost && later.getMessage.contains("SIGKILL"))
        assert(kindOf(engine.call("stats")) == LaminaError.EngineLost)
        val next = Engine.get(peer.settings())
        assert(next.generation > engine.generation && next.pid != engine.pid)
        next.ping()
        assert(kindOf(engine.ping()) == LaminaError.EngineLost)
      }
  }

  test("an engine killed while a control call is under way, or while nothing is, is lost") {
    val engine = Engine.get(peer.settings())
    val error = intercept[LaminaError](engine.call("begin", Int.box(1), ("peer" -> "die"): JObject))
    assert(error.kind == LaminaError.EngineLost && kindsOf(error) == Set(LaminaError.EngineLost))
    val next = Engine.get(peer.settings())
    next.ping()
    kill(next)
    assert(kindOf(next.ping()) == LaminaError.EngineLost)
  }

  test("a temporary directory with a long path works, and the engine's second directory goes too") {
    def inTmp: Set[Path] = Using.resource(Files.list(Paths.get("/tmp")))(_.iterator.asScala.toSet)
    val long = Files.createDirectories(peer.root.resolve("l" * 100).resolve("m" * 100))
    val before = inTmp
    Seq(true, false).foreach { killed =>
      val engine = Engine.get(peer.settings(tempDir = long))
      engine.ping()
      if (killed) kill(engine)
      Engine.shutdown()
    }
    assert(Using.resource(Files.list(long))(_.count()) == 0)
    val sockets = (inTmp -- before).filter(path => Files.exists(path.resolve("data.sock")))
    assert(sockets.isEmpty)
  }

  test("an engine that does not end by itself is ended by force") {
    val engine = Engine.get(peer.settings(raw = Map("lingers" -> "yes")))
    val handle = ProcessHandle.of(engine.pid).get
    Engine.shutdown()
    assert(!handle.isAlive)
  }

  test("another process setting than the first start's is a conflict that names both values") {
    val key = "spark.sql.streaming.stateStore.lamina.heap.maxBytes"
    val other = "spark.sql.streaming.stateStore.lamina.storage.cache.maxBytes"
    val first = Engine.get(peer.settings(raw = Map(key -> "100")))
    val error = intercept[LaminaError](Engine.get(peer.settings(raw = Map(key -> "200"))))
    assert(error.kind == LaminaError.SettingsConflict)
    Seq(key, "'100'", "'200'").foreach(part => assert(error.getMessage.contains(part)))
    assert(intercept[LaminaError](Engine.get(peer.settings(raw = Map(other -> "1")))).getMessage.contains("not set"))
    assert(Engine.get(peer.settings()) eq first, "what a later query leaves out follows the first")
    assert(Engine.get(peer.settings().copy(python = "/of/spark")) eq first, "the Python that it would start with, too")
    kill(first)
    assert(Engine.get(peer.settings()).call("stats") \ "process" \ key == JString("100"), "also when it starts again")
  }

  test("after a refusal the next query's process settings count, what it leaves out too, until a store has opened") {
    val key = "spark.sql.streaming.stateStore.lamina.heap.maxBytes"
    def process(engine: Engine): JValue = engine.call("stats") \ "process" \ key
    assert(!Engine.mayChange)
    intercept[LaminaError](Engine.get(peer.settings(raw = Map("version" -> "99.0.0"))))
    assert(Engine.mayChange, "the engine could not start")
    val first = Engine.get(peer.settings(raw = Map(key -> "100")))
    assert(!Engine.mayChange)
    Engine.refuse()
    val second = Engine.get(peer.settings(raw = Map(key -> "200")))
    assert(second.generation > first.generation && !first.isAlive && process(second) == JString("200"))
    Engine.refuse()
    val third = Engine.get(peer.settings())
    assert(third.generation > second.generation && process(third) == JNothing)
    Engine.opened()
    Engine.refuse()
    assert(kindOf(Engine.get(peer.settings(raw = Map(key -> "200")))) == LaminaError.SettingsConflict)
    assert(Engine.get(peer.settings()) eq third)
  }

  test("an engine of another version is refused, with the side to upgrade") {
    def refusal(version: String): String = {
      val error = intercept[LaminaError](Engine.get(peer.settings(raw = Map("version" -> version))))
      assert(error.kind == LaminaError.VersionEngine)
      error.getMessage
    }
    assert(refusal("99.0.0").contains("upgrade the shim"))
    assert(refusal("0.0.9").contains("upgrade the engine"))
  }

  test("a Python that does not exist, ends at once, lacks a package or stays silent is named with what to do") {
    def failure(script: String, python: String = PeerEngine.python, timeoutMs: Long = 30000): LaminaError = {
      val bad = new PeerEngine(python, script)
      try {
        val error = intercept[LaminaError](Engine.get(bad.settings(startTimeoutMs = timeoutMs)))
        assert(bad.leftBehind.isEmpty)
        error
      } finally bad.delete()
    }
    val missing = failure("", python = "/no/such/python")
    assert(missing.kind == LaminaError.EngineStart && missing.getMessage.contains("/no/such/python"))
    val ended = failure("raise SystemExit('out of luck')")
    assert(ended.kind == LaminaError.EngineStart && ended.getMessage.contains("out of luck"))
    val package_ = failure("raise ModuleNotFoundError(\"No module named 'pyarrow'\")")
    assert(package_.kind == LaminaError.EngineDependency && package_.getMessage.contains("pip install pyarrow"))
    val told = failure("""print('{"ok": false, "error": {"kind": "engine.dependency", "message": "needs fsspec"}}')""")
    assert(told.kind == LaminaError.EngineDependency && told.getMessage.contains("needs fsspec"))
    val silent = failure("import time; time.sleep(3600)", timeoutMs = 300)
    assert(silent.kind == LaminaError.EngineStart && silent.getMessage.contains("300 ms"))
    val nonsense = failure("print('hello')")
    assert(nonsense.kind == LaminaError.EngineStart && nonsense.getMessage.contains("hello"))
  }

  test("a temporary directory that cannot be used is named") {
    val error = intercept[LaminaError](Engine.get(peer.settings(tempDir = Paths.get("/no/such/directory"))))
    assert(error.kind == LaminaError.EngineStart && error.getMessage.contains("/no/such/directory"))
  }
}
