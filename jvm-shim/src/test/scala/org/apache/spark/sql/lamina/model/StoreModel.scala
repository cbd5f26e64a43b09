package org.apache.spark.sql.lamina.model

import java.util.concurrent.atomic.AtomicInteger

import scala.collection.mutable

import org.apache.hadoop.conf.Configuration

import org.apache.spark.SparkConf
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.lamina._
import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.table.{PagePool, SystemMemory}
import org.apache.spark.sql.lamina.wire.ProcessSettings
import org.apache.spark.unsafe.Platform

/** Memory that stays readable after it was given back, but holds other bytes then. */
private[lamina] final class OverwrittenMemory extends SystemMemory {
  private val sizes = mutable.HashMap.empty[Long, Long]
  private val freed = mutable.ArrayBuffer.empty[Long]

  override def allocate(bytes: Long): Long = synchronized {
    val address = Platform.allocateMemory(bytes)
    sizes(address) = bytes
    address
  }

  override def free(address: Long): Unit = synchronized {
    Platform.setMemory(address, 0x5a.toByte, math.min(sizes(address), StoreModel.CapBytes))
    freed += address
  }

  /** At the end of a run. */
  def close(): Unit = synchronized {
    freed.foreach(Platform.freeMemory)
    freed.clear()
  }
}

/** A provider of the model: its engine is in memory, and it shares nothing with other runs. */
private[lamina] final class ModelProvider(model: StoreModel) extends StreamingProvider {
  @volatile var stopped = false
  @volatile var isClosed = false
  var engine: ModelEngine = _

  override private[lamina] def isStopped: Boolean = stopped

  /** Not where one thread runs at a time: such an open has a thread that is nobody's to choose. */
  override private[lamina] def opensAhead(version: Long): Boolean = !model.threads.isStepped && model.threads.oneIn(2)
  override private[lamina] def registry: TableRegistry = model.registry
  override private[lamina] def scheduling: Scheduling = model.threads
  override private[lamina] def newPool(settings: StoreSettings, conf: SparkConf): PagePool = model.pool
  override private[lamina] def newEngine(
      id: StateStoreId,
      storeConf: StateStoreConf,
      hadoopConf: Configuration,
      process: ProcessSettings,
      settings: Map[String, String]
  ): EngineStore = {
    engine =
      new ModelEngine(model.storage, model.threads, model.checkLocks _, id, storeConf, hadoopConf, process, settings)
    engine
  }
}

/** An open store as the model sees it. */
private[lamina] final class Opened(val store: LaminaStateStore, var rows: Map[Long, Int]) {

  /** Whether its task has ended, or has given it up. */
  @volatile var isOver = false

  /** Whether it walks what it has committed. */
  @volatile var readsOn = false
}

/** A row as it was when it was handed out. */
private[lamina] final class HandedOut(row: UnsafeRow) {
  private val bytes = row.getBytes

  def isChanged: Boolean = !java.util.Arrays.equals(bytes, row.getBytes)
}

/**
 * A store's versions as maps beside the real thing: providers, the registry, tables, commits. The storage and the engine
 * are in memory.
 *
 * @param newProvider makes a provider ready; the number is how long its table stays, in milliseconds
 */
private[lamina] final class StoreModel(
    val threads: ModelThreads,
    newProvider: (StoreModel, Long) => ModelProvider,
    family: String
) {
  private val memory = new OverwrittenMemory
  val pool = new PagePool(StoreModel.CapBytes, memory)
  val registry = new TableRegistry(() => threads.nanoTime() / 1000000L, (_, _) => ())
  val storage = new ModelStorage(threads)
  pool.onPressure(() => evictOne())

  /** Threads that use the store: those that run tasks, and Python's, which may outlive its task. */
  val atWork = new AtomicInteger

  /** Rows of each version that a commit made, by attempt. */
  private val expected = mutable.HashMap("" -> Map.empty[Long, Int])

  /** Versions that Spark has in its log, and may open; the head is the last. */
  private val log = mutable.ArrayBuffer[(Long, Option[String])](0L -> None)
  private val tables = mutable.LinkedHashSet.empty[LiveTable]
  private val tablesBefore = StatePool.tables.get
  private val providers = mutable.ArrayBuffer.empty[ModelProvider]
  private val opened = mutable.ArrayBuffer.empty[Opened]
  private val handedOut = mutable.HashMap.empty[Long, mutable.ArrayBuffer[HandedOut]]

  private var tasks = 0

  // ---- what Spark's driver knows

  def newTask(): Int = synchronized {
    tasks += 1
    tasks
  }

  def rowsOf(attempt: Option[String]): Map[Long, Int] = synchronized(expected(attempt.getOrElse("")))

  def made(attempt: Option[String], rows: Map[Long, Int]): Unit = synchronized(expected(attempt.getOrElse("")) = rows)

  /** A task has ended well: its version may be opened, and often the next batch is based on it. */
  def confirm(version: Long, attempt: Option[String]): Unit = synchronized {
    if (version > log.last._1 || threads.oneIn(2)) log += version -> attempt
    else log.insert(log.size - 1, version -> attempt)
  }

  /** What a batch opens: mostly the head, or what was there before: for a second action, or after a restart. */
  def choose(): (Long, Option[String]) = synchronized {
    if (threads.oneIn(3)) log(math.max(0, log.size - 1 - threads.choose(4))) else log.last
  }

  // ---- providers

  def addProvider(): Unit = {
    val provider = newProvider(this, if (threads.oneIn(4)) 0L else 60000L)
    synchronized(providers += provider)
    ()
  }

  def provider(): ModelProvider = synchronized(threads.oneOf(providers.takeRight(2)))

  def close(provider: ModelProvider): Unit = {
    provider.isClosed = true
    provider.close()
  }

  /** Asks for the memory of one table. */
  def evictOne(): Boolean = {
    val before = synchronized(tables.toSeq).filterNot(_.closed)
    val running = synchronized(providers.toSeq).filterNot(one => one.isClosed || one.stopped)
    val kept = before.filter(table => running.exists(one => registry.isOwned(table, one.opens)))
    val isEvicted = registry.evictOne()
    if (threads.isStepped)
      kept.find(_.closed).foreach(table => throw new Violation(Rules.RunningKeepsItsTable, s"${table.at}"))
    isEvicted
  }

  // ---- opens

  def add(one: Opened): Opened = synchronized {
    if (!opened.contains(one)) opened += one
    tables += one.store.live
    one
  }

  def keep(task: Long, row: UnsafeRow): Unit =
    if (row != null && row.getBaseObject == null)
      synchronized(handedOut.getOrElseUpdate(task, mutable.ArrayBuffer.empty) += new HandedOut(row))

  /** The task's rows are not looked at any more. */
  def forget(task: Long): Unit = synchronized { handedOut.remove(task); () }

  def checkKept(task: Long): Unit = synchronized {
    if (handedOut.get(task).exists(_.exists(_.isChanged)))
      throw new Violation(Rules.KeepsBytes, s"task $task")
  }

  def isFailed(attempt: String): Boolean = storage.failed(attempt)

  def isDurable(attempt: String): Boolean = storage.isDurable(attempt)

  // ---- rules

  def checkLocks(): Unit = synchronized(tables.toSeq).foreach { table =>
    if (Thread.holdsLock(table)) throw new Violation(Rules.NoLockOverEngine, s"${table.at}")
  }

  /** After a step of one thread, while all others rest. */
  def check(): Unit = {
    threads.reclaims.forEach(table => tables += table)
    opened.filterInPlace(!_.isOver)
    opened.foreach(checkRows)
    handedOut.keys.foreach(checkKept)
    tables.filterInPlace(!_.closed)
    tables.foreach(checkTable)
  }

  private def checkTable(table: LiveTable): Unit = {
    if (table.pending == null && !table.isBusy) {
      val shown = table.at.content +: table.oneBack.map(_.content).toSeq
      shown.find(isFailed).foreach(attempt => throw new Violation(Rules.FailedIsInvisible, s"$attempt in a table"))
    }
    val writers = opened.filter { one =>
      (one.store.live eq table) && (one.store.open.isWriting || one.store.open.state == OpenState.Sending)
    }.filterNot(_.store.open.isOver)
    def violated(what: String) = new Violation(Rules.OneWriter, s"$what: ${writers.map(_.store.open).mkString(", ")}")
    if (writers.size > 1) throw violated(s"${writers.size} writers")
    writers.foreach { writer =>
      val state = registry.state(table)
      if (state != Ownership.InUse && state != Ownership.Leaving) throw violated(s"a writer on a table $state")
      if (!registry.isOwned(table, writer.store.provider.opens)) throw violated("a writer on another one's table")
    }
  }

  /** Reads all rows of an open, as any thread may. */
  def checkRows(one: Opened): Unit = {
    val store = one.store
    val state = store.open.state
    val reads = state == OpenState.Reading || state == OpenState.Writing || state == OpenState.Committed
    if (reads && !store.open.isOver) {
      try {
        val found = store.iterator(family).map(pair => pair.key.getLong(0) -> pair.value.getInt(0)).toSeq
        compare(one, found)
      } catch { case StoreModel.Stale(why) => checkStale(one, why) }
    }
  }

  def compare(one: Opened, found: Seq[(Long, Int)]): Unit =
    if (found.size != one.rows.size || found.toMap != one.rows)
      throw new Violation(
        Rules.ReadsItsVersion,
        s"${one.store.open} of version ${one.store.version}: ${found.sorted.mkString(" ")} instead of " +
          one.rows.toSeq.sorted.mkString(" ")
      )

  /** Readers may lose their rows to a table that moves; others keep them. */
  def checkStale(one: Opened, stale: Throwable): Unit = {
    val store = one.store
    if (store.open.state == OpenState.Writing && !store.open.isOver)
      throw new Violation(Rules.KeepsTransaction, s"${store.open}", stale)
    val isLost = store.outcome.flatMap(_.info.stateStoreCkptId).exists(isFailed)
    if (!isLost && (stale.isInstanceOf[LaminaError] || one.readsOn && !store.open.isOver))
      throw new Violation(Rules.ReadsOn, s"${store.open}", stale)
  }

  /** At the end, when all threads have ended. */
  def finish(): Unit = {
    def left(what: String) = new Violation(Rules.NothingIsLeft, what)
    providers.filterNot(_.isClosed).foreach(close)
    while (registry.evictOne()) ()
    providers.zipWithIndex.foreach { case (provider, number) =>
      if (!provider.engine.isClosed)
        throw left(s"provider $number has a table, or its engine was not told that it left")
    }
    val tablesLeft = StatePool.tables.get - tablesBefore
    if (tablesLeft != 0) throw left(s"$tablesLeft tables are counted")
    if (storage.below.get != 0) throw left(s"${storage.below.get} states below tables are open")
    pool.trim()
    if (pool.reservedBytes != 0) throw left(s"${pool.reservedBytes} bytes are reserved")
    memory.close()
  }
}

private[lamina] object StoreModel {
  val CapBytes: Long = 4L << 20

  /** Why an open has lost its rows: its table has moved, or what it has committed itself was lost. */
  object Stale {
    def unapply(error: Throwable): Option[Throwable] = Some(error).filter {
      case _: StateStoreInvalidStamp => true
      case ours: LaminaError => ours.getMessage.contains("did not become durable")
      case _ => false
    }
  }
}
