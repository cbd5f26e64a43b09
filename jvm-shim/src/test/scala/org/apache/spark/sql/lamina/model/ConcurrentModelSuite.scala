package org.apache.spark.sql.lamina.model

import java.util.concurrent.atomic.AtomicReference

import scala.util.Try

import org.apache.logging.log4j.Level
import org.apache.logging.log4j.core.config.Configurator

import org.apache.spark.TaskContextImpl
import org.apache.spark.sql.lamina._
import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.table.StoreTable

/**
 * Who owns a table, in any order: tasks that open, upgrade, commit, end and are killed, providers that are closed and
 * follow each other, maintenance, eviction and uploads, beside a model.
 *
 * A failure names its rule, its seed and the steps. `-Dlamina.model.seed=N` runs that seed alone, `-Dlamina.model.seeds=N`
 * so many, from `-Dlamina.model.first=N` on.
 */
class ConcurrentModelSuite extends ProviderFixture {
  private val only = sys.props.get("lamina.model.seed").map(_.toLong)
  private val first = sys.props.get("lamina.model.first").fold(1L)(_.toLong)
  private val seeds = sys.props.get("lamina.model.seeds").fold(250L)(_.toLong)

  /** These tell of each task that fails, and here it is meant that many do. */
  private def levels(level: Level): Unit =
    Seq(
      classOf[TaskContextImpl].getName,
      TaskDurability.getClass.getName.stripSuffix("$"),
      classOf[WriterTurns].getName
    )
      .foreach(Configurator.setLevel(_, level))

  override protected def beforeAll(): Unit = {
    super.beforeAll()
    levels(Level.OFF)
  }

  override protected def afterAll(): Unit = {
    levels(Level.WARN)
    super.afterAll()
  }

  /** What goes on around one store: three threads that run tasks, and those that do everything else. */
  private def start(threads: ModelThreads, tasks: Int): StoreModel = {
    val id = newId()
    // a query may have another backend after each restart
    def backend(): Map[String, String] =
      if (threads.oneIn(3)) Map.empty
      else Map("backend" -> "rocksdb", "rocksdb.materializeEvery" -> threads.oneOf(Seq("1", "2", "10")))
    val model = new StoreModel(
      threads,
      (model, stayMs) => init(new ModelProvider(model), id, handOverMs = stayMs, settings = backend()),
      family
    )
    model.addProvider()
    val running = Seq.fill(3)(new AtomicReference[ModelTask])
    model.atWork.set(running.size)
    def isOver: Boolean = model.atWork.get == 0
    def background(name: String, times: Int, everyMs: Int)(action: => Unit): Unit = threads.start(name) {
      var left = times
      while (left > 0 && !isOver) {
        threads.rest(threads.choose(2 * everyMs))
        action
        left -= 1
      }
    }
    running.zipWithIndex.foreach { case (current, number) =>
      threads.start(s"task thread $number") {
        try for (_ <- 1 to tasks) {
            current.set(new ModelTask(model, s"task thread $number", family, key)(value))
            current.get.run()
          }
        finally model.atWork.decrementAndGet()
      }
    }
    threads.start("uploads") {
      while (!isOver || !model.storage.isIdle) {
        threads.awaitTrue("waits for an upload")(!model.storage.isIdle || isOver)
        if (!model.storage.isIdle) {
          threads.step("an upload ends")
          model.storage.endOne()
        }
      }
    }
    threads.start("reclaimer") {
      while (!isOver || !threads.reclaims.isEmpty) {
        threads.awaitTrue("waits for work")(!threads.reclaims.isEmpty || isOver)
        Option(threads.reclaims.poll()).foreach { table =>
          while (table.synchronized(table.reclaim(1))) threads.step("reclaims a page")
        }
      }
    }
    background("killer", tasks / 2, everyMs = 1000) {
      val number = threads.choose(running.size)
      Option(running(number).get).foreach(_.kill(threads.interrupt(s"task thread $number")))
    }
    background("restart", 2 + tasks / 4, everyMs = 1500) {
      val last = model.provider()
      threads.choose(4) match {
        case 0 => last.stopped = true
        case 1 => last.doMaintenance()
        case _ => ()
      }
      model.addProvider()
      if (!threads.oneIn(3)) model.close(last)
    }
    background("maintenance", tasks, everyMs = 1000) {
      threads.choose(3) match {
        case 0 => model.evictOne()
        case 1 => model.registry.expire()
        case _ =>
          model.registry.layeredAtRest(model.pool).foreach { table =>
            threads.step("a table at rest forgets rows")
            table.synchronized { table.forgetSomeAtRest(); () }
          }
      }
    }
    background("another query", tasks / 3, everyMs = 2000) {
      takeAllMemory(threads, model)
    }
    model
  }

  /** Another store fills the memory up to the cap, and empties itself. */
  private def takeAllMemory(threads: ModelThreads, model: StoreModel): Unit = {
    val table = new StoreTable(model.pool)
    val rows = table.addFamily(0, ordered = false, multiValue = false)
    table.begin()
    val bytes = new Array[Byte](60000)
    try
      for (number <- 1 to 200) {
        bytes(0) = number.toByte
        val start = org.apache.spark.unsafe.Platform.BYTE_ARRAY_OFFSET.toLong
        rows.put(bytes, start, 8, bytes, start, bytes.length)
      }
    catch { case error: LaminaError if error.kind == LaminaError.MemoryCap => threads.step("memory is full") }
    finally table.close()
  }

  /** One run, all of whose choices follow from the seed; its steps. */
  private def run(seed: Long): Seq[String] = {
    val threads = new StepThreads(seed)
    try {
      val model = start(threads, tasks = 8)
      threads.run(() => model.check())
      model.finish()
      threads.steps.toSeq
    } catch {
      case error: Throwable =>
        val steps = threads.steps.takeRight(200).mkString("\n  ")
        val rule = error match { case violation: Violation => violation.getMessage; case other => other.toString }
        throw new AssertionError(s"seed $seed: $rule\n  after\n  $steps", error)
    }
  }

  test("in any order of steps the rules hold that the model knows") {
    only match {
      case Some(seed) => run(seed)
      case None => (first until first + seeds).foreach(run)
    }
  }

  test("a seed gives the same steps again") {
    assert(run(7L) == run(7L))
    assert(run(7L) != run(8L))
  }

  test("on threads that the JVM runs side by side the same rules hold") {
    for (seed <- first to first + seeds / 25) {
      val threads = new FreeThreads(seed)
      val outcome = Try {
        val model = start(threads, tasks = 12)
        threads.join(patienceMs = 120000L)
        model.finish()
      }
      outcome.failed.foreach(error => throw new AssertionError(s"choices $seed: ${error.getMessage}", error))
    }
  }
}
