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
 * given up.
 *
 * @param open called once, within the task's context
 */
final class OpeningStore(
    override val id: StateStoreId,
    override val version: Long,
    task: TaskContext,
    open: () => LaminaStateStore
) extends StateStore
    with FamilyRegistration {
  private val opening = new FutureTask[LaminaStateStore](() => {
    TaskContext.setTaskContext(task)
    try open()
    finally TaskContext.unset()
  })

  /** The store once it is open, for the task's thread, or the one that feeds its Python worker. */
  @volatile private var known: LaminaStateStore = _

  OpeningStore.threads.execute(opening)
  task.addTaskCompletionListener[Unit] { _ => opening.cancel(true) }

  private def opened: LaminaStateStore = {
    if (known == null) known = await()
    known
  }

  private def await(): LaminaStateStore =
    try opening.get()
    catch {
      case failed: ExecutionException => throw failed.getCause
      case error @ (_: InterruptedException | _: CancellationException) =>
        if (error.isInstanceOf[InterruptedException]) Thread.currentThread.interrupt()
        opening.cancel(true)
        throw StateStoreErrors.cannotLoadStore(error)
    }

  /** The store if it is open; nobody waits for one of which nothing was asked. */
  private def ifOpen: Option[LaminaStateStore] =
    Option(known).orElse(if (opening.isDone && !opening.isCancelled) scala.util.Try(opening.get()).toOption else None)

  override def abort(): Unit = {
    opening.cancel(true)
    ifOpen.foreach(_.abort())
  }

  override def hasCommitted: Boolean = ifOpen.exists(_.hasCommitted)

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
