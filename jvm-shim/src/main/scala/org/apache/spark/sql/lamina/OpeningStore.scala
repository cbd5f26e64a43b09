package org.apache.spark.sql.lamina

import java.util.concurrent.{CancellationException, ExecutionException, Executors, FutureTask}

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.lamina.wire.DaemonThreads
import org.apache.spark.sql.types.StructType

/**
 * A store that a task has opened for writing and that a thread of its own brings to the version meanwhile. Whoever uses it
 * first waits for that, and gets the error if it failed. So the stores of one task are restored at the same time, although
 * Spark opens them one after the other.
 *
 * The open belongs to the task as any other: when the task ends, what is open is aborted, and what is still being opened is
 * given up. What is aborted while it is opened is aborted before the next open has its turn.
 *
 * @param open called once, within the task's context; is to call its argument with the store before the open's turn ends
 */
final class OpeningStore(
    override val id: StateStoreId,
    override val version: Long,
    task: TaskContext,
    open: (LaminaStateStore => Unit) => LaminaStateStore
) extends StateStore
    with FamilyRegistration {
  private val opening = new FutureTask[LaminaStateStore](() => {
    TaskContext.setTaskContext(task)
    try open(hold)
    finally TaskContext.unset()
  })

  /** The store once it is open. Written under this object's lock; Python's threads read it, too. */
  @volatile private var known: LaminaStateStore = _
  private var aborted = false
  private var over = false

  /** To be called once, in the task's thread: among its listeners this one has the place that a direct open has. */
  def begin(): Unit = {
    task.addTaskCompletionListener[Unit](_ => end())
    OpeningStore.threads.execute(opening)
  }

  /** The store is open, and its turn goes on. */
  private def hold(store: LaminaStateStore): Unit = synchronized {
    known = store
    if (over) store.endWithTask() else if (aborted) store.abort()
  }

  private def end(): Unit = {
    val store = synchronized {
      over = true
      known
    }
    opening.cancel(true)
    if (store != null) store.endWithTask()
  }

  /** Whether the open has succeeded, or will not. */
  def isEnded: Boolean = opening.isDone

  def awaitEnd(): Unit =
    try { opening.get(); () }
    catch { case _: ExecutionException | _: CancellationException => () }

  /** The store; waits until it is open. */
  private[lamina] def opened: LaminaStateStore = {
    val store = known
    if (store != null) store else await()
  }

  private def await(): LaminaStateStore =
    try opening.get()
    catch {
      case failed: ExecutionException => throw failed.getCause
      case error @ (_: InterruptedException | _: CancellationException) =>
        if (error.isInstanceOf[InterruptedException]) Thread.currentThread.interrupt()
        abort()
        throw StateStoreErrors.cannotLoadStore(error)
    }

  override def abort(): Unit = {
    val store = synchronized {
      aborted = true
      known
    }
    if (store != null) store.abort() else opening.cancel(true)
  }

  override def hasCommitted: Boolean = known != null && known.hasCommitted

  override def allColumnFamilyNames: Set[String] = opened.allColumnFamilyNames

  override def createColFamilyIfAbsent(
      colFamilyName: String,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useMultipleValuesPerKey: Boolean,
      isInternal: Boolean
  ): Unit = opened.createColFamilyIfAbsent(
    colFamilyName,
    keySchema,
    valueSchema,
    keyStateEncoderSpec,
    useMultipleValuesPerKey,
    isInternal
  )

  override def removeColFamilyIfExists(colFamilyName: String): Boolean = opened.removeColFamilyIfExists(colFamilyName)

  override def get(key: UnsafeRow, colFamilyName: String): UnsafeRow = opened.get(key, colFamilyName)

  override def multiGet(keys: Array[UnsafeRow], colFamilyName: String): Iterator[UnsafeRow] =
    opened.multiGet(keys, colFamilyName)

  override def keyExists(key: UnsafeRow, colFamilyName: String): Boolean = opened.keyExists(key, colFamilyName)

  override def valuesIterator(key: UnsafeRow, colFamilyName: String): Iterator[UnsafeRow] =
    opened.valuesIterator(key, colFamilyName)

  override def iterator(colFamilyName: String): StateStoreIterator[UnsafeRowPair] = opened.iterator(colFamilyName)

  override def iteratorWithMultiValues(colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    opened.iteratorWithMultiValues(colFamilyName)

  override def prefixScan(prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    opened.prefixScan(prefixKey, colFamilyName)

  override def prefixScanWithMultiValues(
      prefixKey: UnsafeRow,
      colFamilyName: String
  ): StateStoreIterator[UnsafeRowPair] = opened.prefixScanWithMultiValues(prefixKey, colFamilyName)

  override def rangeScan(
      startKey: Option[UnsafeRow],
      endKey: Option[UnsafeRow],
      colFamilyName: String
  ): StateStoreIterator[UnsafeRowPair] = opened.rangeScan(startKey, endKey, colFamilyName)

  override def rangeScanWithMultiValues(
      startKey: Option[UnsafeRow],
      endKey: Option[UnsafeRow],
      colFamilyName: String
  ): StateStoreIterator[UnsafeRowPair] = opened.rangeScanWithMultiValues(startKey, endKey, colFamilyName)

  override def put(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit =
    opened.put(key, value, colFamilyName)

  override def putList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit =
    opened.putList(key, values, colFamilyName)

  override def merge(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit =
    opened.merge(key, value, colFamilyName)

  override def mergeList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit =
    opened.mergeList(key, values, colFamilyName)

  override def remove(key: UnsafeRow, colFamilyName: String): Unit = opened.remove(key, colFamilyName)

  override def deleteRange(beginKey: UnsafeRow, endKey: UnsafeRow, colFamilyName: String): Unit =
    opened.deleteRange(beginKey, endKey, colFamilyName)

  override def commit(): Long = opened.commit()

  override def release(): Unit = opened.release()

  override def metrics: StateStoreMetrics = opened.metrics

  override def getStateStoreCheckpointInfo(): StateStoreCheckpointInfo = opened.getStateStoreCheckpointInfo()

  override def toString: String = s"OpeningStore[stateStoreId=$id, version=$version]"
}

private object OpeningStore {
  private val threads = Executors.newCachedThreadPool(DaemonThreads("lamina-open"))
}

/**
 * Keeps the opens of one provider in the order in which their tasks asked for them: two tasks that each had one store of the
 * other would wait for each other. So a store is handed out before it is open only where no other open is under way.
 */
private[lamina] final class OpenOrder {
  private var last: OpeningStore = _
  private var direct = 0

  /** Hands a store out before it is open, or opens it directly where it `isThere` or another open is under way. */
  def aheadOr(isThere: => Boolean)(store: => OpeningStore)(open: => StateStore): StateStore = {
    val ahead = synchronized {
      if (direct > 0 || isThere || (last != null && !last.isEnded)) {
        direct += 1
        None
      } else {
        last = store
        Some(last)
      }
    }
    ahead.fold(counted(open)) { store =>
      store.begin()
      store
    }
  }

  /** An open whose task waits for it, after the one that was handed out. */
  def directly[A](open: => A): A = {
    synchronized(direct += 1)
    counted(open)
  }

  private def counted[A](open: => A): A =
    try {
      await()
      open
    } finally synchronized(direct -= 1)

  private def await(): Unit = {
    val awaited = synchronized(last)
    if (awaited != null) {
      awaited.awaitEnd()
      synchronized(if (last eq awaited) last = null)
    }
  }
}
