package org.apache.spark.sql.lamina

import java.util.{HashMap => JHashMap}

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.errors.QueryExecutionErrors
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.table.{FamilyTable, RowCursor, Rows}
import org.apache.spark.sql.types.StructType
import org.apache.spark.unsafe.Platform

/**
 * One open of a store: answers the row calls from the table.
 *
 * Every call takes the table's lock and checks that this open may still use it: a writer must own the transaction, a
 * reader must find the rows that it opened. A reader that was not upgraded reads version N, whatever a writer does
 * meanwhile.
 *
 * @param sent the checkpoint id that Spark asked for, to be named as the base of a commit
 */
final class LaminaStateStore(
    val provider: LaminaStateStoreProvider,
    opened: LiveTable,
    private[lamina] val open: Open,
    openedCodecs: Codecs,
    override val version: Long,
    private[lamina] val sent: Option[String]
) extends StateStore
    with FamilyRegistration {
  import OpenAction._

  /** The table, and how its rows are read. Only the upgrade of a reader with a table of its own changes them. */
  @volatile private[lamina] var live: LiveTable = opened
  private[lamina] var codecs: Codecs = openedCodecs

  // All of these are guarded by the table's lock.
  private var generation = live.generation
  private val families = new JHashMap[String, OpenFamily]()
  private var default: OpenFamily = _
  private val key = new Bytes
  private val value = new Bytes
  private var isValidated = provider.usesColumnFamilies
  private[lamina] var draft: Draft = _
  private[lamina] var outcome: Option[Outcome] = None

  /** The commit, where its becoming durable was not waited for. */
  private[lamina] var pending: Option[DurableCommit] = None

  override def id: StateStoreId = provider.stateStoreId

  /** Starts to use the table as it is now: after the open, after an upgrade. Under the lock. */
  private[lamina] def attach(): Unit = {
    generation = live.generation
    forget()
  }

  /** Goes on with another table. Rows of the first stay readable until the task ends. Under the lock of `to`. */
  private[lamina] def rebase(to: LiveTable, decoding: Codecs): Unit = {
    to.enter(open)
    codecs = decoding
    live = to
    attach()
  }

  private def forget(): Unit = {
    families.clear()
    default = null
  }

  // ---- checks

  /** Checks that rows may be read; true where the reader sees the version without the open transaction. */
  private[lamina] def reading(): Boolean = {
    val writing = open.isWriting
    if (!writing) {
      open.transition(Read)
      if (outcome.isDefined && open.task == null) throw readAfterCommit()
    }
    if (open.left || (if (writing) live.writer ne open else live.generation != generation)) throw stale()
    !writing
  }

  /** Without a task to end it a commit ends an open. */
  private def readAfterCommit(): Throwable =
    StateStoreErrors.stateStoreOperationOutOfOrder("Cannot read after COMMITTED outside of a task")

  private def updating(): Unit = {
    if (!open.isWriting) open.transition(Update)
    if (live.writer ne open) throw stale()
  }

  /** Why the rows of this open are not there any more: what it has committed itself may have been lost meanwhile. */
  private[lamina] def stale(): Throwable = pending.flatMap(_.failed) match {
    case Some(failure) =>
      val (kind, why) = LaminaError.kindAndText(failure)
      new LaminaError(kind, s"$this, which its task reads on, did not become durable: $why", failure)
    case None => StateStoreErrors.invalidStamp(open.stamp, Option(live.writer).fold(live.generation)(_.stamp))
  }

  /** The column family of a call, or Spark's error for a wrong name. */
  private def family(operation: String, name: String): OpenFamily =
    if ((name eq StateStore.DEFAULT_COL_FAMILY_NAME) && default != null) default
    else {
      val known = families.get(name)
      if (known != null) known else resolve(operation, name)
    }

  /** The column families that this open sees. Under the lock. */
  private def present: ColumnFamilies = if (open.isWriting) live.working else live.at.families

  private def resolve(operation: String, name: String): OpenFamily = {
    provider.verifyFamily(operation, name)
    val family = present.get(name) match {
      case Some(known) =>
        new OpenFamily(codecs.of(known), live.addFamily(known))
      case None => codecs.registered(name) match {
          case Some(codec) if name == StateStore.DEFAULT_COL_FAMILY_NAME || !open.isWriting =>
            new OpenFamily(codec, null)
          case _ => throw StateStoreErrors.unsupportedOperationOnMissingColumnFamily(operation, name)
        }
    }
    families.put(name, family)
    if (name == StateStore.DEFAULT_COL_FAMILY_NAME) default = family
    family
  }

  private def verify(condition: Boolean, message: => String): Unit =
    if (!condition) throw new IllegalStateException(message)

  private def verifyMultiValue(family: OpenFamily, operation: String): Unit = verify(
    family.codec.multiValue,
    s"$operation requires an encoder which supports multiple values for a single key"
  )

  // ---- column families

  override def allColumnFamilyNames: Set[String] =
    live.synchronized(present.byName.keySet)

  override def createColFamilyIfAbsent(
      colFamilyName: String,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useMultipleValuesPerKey: Boolean,
      isInternal: Boolean
  ): Unit = live.synchronized {
    reading()
    provider.verifyFamilyCreation("create_col_family", colFamilyName, isInternal)
    val wanted = codecs.register(
      colFamilyName,
      keySchema,
      valueSchema,
      keyStateEncoderSpec,
      useMultipleValuesPerKey,
      isInternal
    )
    if (open.isWriting) {
      live.working.get(colFamilyName) match {
        case Some(known) => live.working = codecs.updated(live.working, known)
        case None => live.create(wanted)
      }
    }
    families.remove(colFamilyName)
  }

  override def removeColFamilyIfExists(colFamilyName: String): Boolean = live.synchronized {
    updating()
    provider.verifyFamilyCreation("remove_col_family", colFamilyName, isInternal = false)
    live.working.get(colFamilyName) match {
      case Some(family) =>
        live.table.dropFamily(family.id)
        live.working = live.working.remove(colFamilyName)
        codecs.unregister(colFamilyName)
        families.remove(colFamilyName)
        true
      case None => false
    }
  }

  // ---- reads

  override def get(keyRow: UnsafeRow, colFamilyName: String): UnsafeRow = live.synchronized {
    val base = reading()
    verify(keyRow != null, "Key cannot be null")
    lookUp(keyRow, family("get", colFamilyName), base)
  }

  override def multiGet(keys: Array[UnsafeRow], colFamilyName: String): Iterator[UnsafeRow] = live.synchronized {
    val base = reading()
    verify(keys != null && keys.forall(_ != null), "Keys cannot be null")
    val from = family("multiGet", colFamilyName)
    keys.map(lookUp(_, from, base)).iterator
  }

  override def keyExists(keyRow: UnsafeRow, colFamilyName: String): Boolean = live.synchronized {
    val base = reading()
    verify(keyRow != null, "Key cannot be null")
    find(keyRow, family("keyExists", colFamilyName), base, keeps = false) != 0L
  }

  override def valuesIterator(keyRow: UnsafeRow, colFamilyName: String): Iterator[UnsafeRow] = live.synchronized {
    val base = reading()
    verify(keyRow != null, "Key cannot be null")
    val from = family("valuesIterator", colFamilyName)
    verifyMultiValue(from, "valuesIterator")
    val row = find(keyRow, from, base, keeps = false)
    if (row == 0L) Iterator.empty else new ValuesIterator(this, from, row)
  }

  /** The row for the calling thread: as it lies in the table where that may read it there, else a copy. */
  private[lamina] def handOut(row: UnsafeRow): UnsafeRow =
    if (row == null || row.getBaseObject != null || (open.readsInPlace && !live.isLayered)) row else row.copy()

  /** The row of a key, or 0; `keeps` where its value is handed out as it lies. */
  private def find(keyRow: UnsafeRow, from: OpenFamily, base: Boolean, keeps: Boolean): Long =
    if (from.table == null) 0L
    else {
      from.codec.key(keyRow, key)
      if (base) from.table.getBase(key.base, key.offset, key.length)
      else if (keeps) from.table.get(key.base, key.offset, key.length)
      else from.table.find(key.base, key.offset, key.length)
    }

  private def lookUp(keyRow: UnsafeRow, from: OpenFamily, base: Boolean): UnsafeRow = {
    val row = find(keyRow, from, base, keeps = !from.codec.multiValue && !live.isLayered)
    if (row == 0L) null
    else {
      val found = from.value(row)
      if (found != null) validate(keyRow, found, from, row)
      if (from.isGrowing(row)) OpenFamily.copied(found) else handOut(found)
    }
  }

  /**
   * Checks the first committed row that this open sees against the schemas. Rows of the open transaction are the
   * operator's own: Spark's default provider, which checks what it reads from files, takes them as they are. Under the lock.
   */
  private[lamina] def validate(keyRow: UnsafeRow, valueRow: UnsafeRow, from: OpenFamily, row: Long): Unit =
    if (!isValidated && isOfBase(from, row)) {
      provider.validateRows(keyRow, valueRow)
      isValidated = true
    }

  private def isOfBase(from: OpenFamily, row: Long): Boolean =
    !Rows.isOwn(row) &&
      (from.table.rowsMayGo || from.table.getBase(null, Rows.keyAddress(row), Rows.keyLength(row)) == row)

  // ---- scans

  override def iterator(colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    scan("iterator", colFamilyName, multi = false)((_, table, base) => table.scan(base))

  override def iteratorWithMultiValues(colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    scan("iteratorWithMultiValues", colFamilyName, multi = true)((_, table, base) => table.scan(base))

  override def prefixScan(prefixKey: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair] =
    scanPrefix("prefixScan", prefixKey, colFamilyName, multi = false)

  override def prefixScanWithMultiValues(
      prefixKey: UnsafeRow,
      colFamilyName: String
  ): StateStoreIterator[UnsafeRowPair] =
    scanPrefix("prefixScanWithMultiValues", prefixKey, colFamilyName, multi = true)

  private def scanPrefix(operation: String, prefixKey: UnsafeRow, name: String, multi: Boolean) =
    scan(operation, name, multi, prefix = true) { (codec, table, base) =>
      val prefix = codec.prefix(prefixKey)
      table.range(prefix, org.apache.spark.sql.lamina.table.KeyOrder.successor(prefix), base)
    }

  override def rangeScan(
      startKey: Option[UnsafeRow],
      endKey: Option[UnsafeRow],
      colFamilyName: String
  ): StateStoreIterator[UnsafeRowPair] =
    scanRange("rangeScan", startKey, endKey, colFamilyName, multi = false)

  override def rangeScanWithMultiValues(
      startKey: Option[UnsafeRow],
      endKey: Option[UnsafeRow],
      colFamilyName: String
  ): StateStoreIterator[UnsafeRowPair] =
    scanRange("rangeScanWithMultiValues", startKey, endKey, colFamilyName, multi = true)

  private def scanRange(
      operation: String,
      from: Option[UnsafeRow],
      to: Option[UnsafeRow],
      name: String,
      multi: Boolean
  ) =
    scan(operation, name, multi, range = true) { (codec, table, base) =>
      table.range(from.map(codec.orderedKey).orNull, to.map(codec.orderedKey).orNull, base)
    }

  private def scan(operation: String, name: String, multi: Boolean, prefix: Boolean = false, range: Boolean = false)(
      start: (FamilyCodec, FamilyTable, Boolean) => RowCursor
  ): StateStoreIterator[UnsafeRowPair] = live.synchronized {
    val base = reading()
    val from = family(operation, name)
    // Spark's own provider says the same, with the same exceptions.
    require(!prefix || from.codec.supportsPrefixScan, "Prefix scan requires setting prefix key!")
    require(!range || from.codec.supportsRangeScan, "Range scan requires an encoder that supports range scanning!")
    if (multi) verifyMultiValue(from, operation)
    val cursor = if (from.table == null) null else start(from.codec, from.table, base)
    val rows = new RowIterator(this, from, cursor, multi)
    new StateStoreIterator(rows, () => rows.close())
  }

  // ---- updates

  override def put(keyRow: UnsafeRow, valueRow: UnsafeRow, colFamilyName: String): Unit = live.synchronized {
    updating()
    verify(keyRow != null, "Key cannot be null")
    require(valueRow != null, "Cannot put a null value")
    val to = family("put", colFamilyName)
    to.codec.key(keyRow, key)
    to.codec.value(key, valueRow, value)
    to.table.put(key.base, key.offset, key.length, value.base, value.offset, value.length)
  }

  override def putList(keyRow: UnsafeRow, valueRows: Array[UnsafeRow], colFamilyName: String): Unit =
    live.synchronized {
      updating()
      verify(keyRow != null, "Key cannot be null")
      require(valueRows != null, "Cannot put a null value")
      valueRows.foreach(row => require(row != null, "Cannot put a null value in the array"))
      val to = family("put", colFamilyName)
      verifyMultiValue(to, "Multi-value put operation")
      to.codec.key(keyRow, key)
      to.codec.elements(key, valueRows, value)
      to.table.put(key.base, key.offset, key.length, value.base, value.offset, value.length)
    }

  override def merge(keyRow: UnsafeRow, valueRow: UnsafeRow, colFamilyName: String): Unit =
    append(keyRow, "Cannot merge a null value", colFamilyName)(if (valueRow == null) null else Array(valueRow))

  override def mergeList(keyRow: UnsafeRow, valueRows: Array[UnsafeRow], colFamilyName: String): Unit =
    append(keyRow, "Cannot merge a null value", colFamilyName)(valueRows)

  private def append(keyRow: UnsafeRow, refusal: String, name: String)(valueRows: Array[UnsafeRow]): Unit =
    live.synchronized {
      updating()
      val to = family("merge", name)
      verifyMultiValue(to, "Merge operation")
      verify(keyRow != null, "Key cannot be null")
      require(valueRows != null, refusal)
      valueRows.foreach(row => require(row != null, "Cannot merge a null value in the array"))
      to.codec.key(keyRow, key)
      to.codec.elements(key, valueRows, value)
      to.table.append(key.base, key.offset, key.length, value.base, value.offset, value.length)
    }

  override def remove(keyRow: UnsafeRow, colFamilyName: String): Unit = live.synchronized {
    updating()
    verify(keyRow != null, "Key cannot be null")
    val from = family("remove", colFamilyName)
    from.codec.key(keyRow, key)
    from.table.remove(key.base, key.offset, key.length)
    ()
  }

  override def deleteRange(beginKey: UnsafeRow, endKey: UnsafeRow, colFamilyName: String): Unit = live.synchronized {
    updating()
    verify(beginKey != null, "Begin key cannot be null")
    verify(endKey != null, "End key cannot be null")
    val from = family("deleteRange", colFamilyName)
    verify(
      from.codec.supportsDeleteRange,
      "deleteRange requires a RangeKeyScanStateEncoderSpec for ordered key encoding"
    )
    val cursor = from.table.range(from.codec.orderedKey(beginKey), from.codec.orderedKey(endKey), startsAtBase = false)
    var row = cursor.next()
    while (row != 0L) {
      val removed = Bytes.copy(null, Rows.keyAddress(row), Rows.keyLength(row))
      from.table.remove(removed, Platform.BYTE_ARRAY_OFFSET.toLong, removed.length)
      row = cursor.next()
    }
    cursor.end()
  }

  // ---- end of the open

  override def commit(): Long = {
    try provider.commits.commit(this)
    catch {
      case refused: StateStoreInvalidStamp => throw refused
      case refused: StateStoreOperationOutOfOrder => throw refused
      case error: Throwable =>
        if (error.isInstanceOf[InterruptedException]) Thread.currentThread.interrupt()
        throw QueryExecutionErrors.failedToCommitStateFileError(toString, error)
    }
    leaveFirstWithoutTask()
    provider.reportCommit(version + 1)
    version + 1
  }

  /** Checks that a commit is allowed. Under the lock. */
  private[lamina] def requireCommit(): Unit = {
    if (!open.allows(Send)) open.transition(Send)
    if (live.writer ne open) throw stale()
  }

  override def abort(): Unit = {
    live.synchronized {
      val writing = open.isWriting
      open.transition(Abort)
      if (writing && (live.writer eq open)) live.abort()
      endWithoutTask()
    }
    leaveFirstWithoutTask()
  }

  override def release(): Unit = {
    live.synchronized {
      assert(!open.isWriting, "Release can only be called on a read-only store")
      open.transition(Release)
      endWithoutTask()
    }
    leaveFirstWithoutTask()
  }

  /** Rows of an open within a task may be used until the task ends. */
  private[lamina] def endWithoutTask(): Unit = if (open.task == null) live.leave(open)

  /** The same of the table that it was opened with, where it went on with another one. Not under the lock of that. */
  private def leaveFirstWithoutTask(): Unit = if (open.task == null) leaveFirst()

  private def leaveFirst(): Unit = if (opened ne live) opened.synchronized(opened.leave(open))

  /** The task has ended: what it left open is aborted or released, its rows are given up. */
  private[lamina] def endWithTask(): Unit =
    try live.synchronized {
        try {
          if (open.allows(TakeOver)) abort()
          else if (open.allows(Release)) release()
        } finally live.leave(open)
      }
    finally leaveFirst()

  override def hasCommitted: Boolean = open.state == OpenState.Committed

  override def metrics: StateStoreMetrics =
    outcome.fold(live.synchronized { live.awaitMoved(); provider.measure(live, present) })(_.metrics)

  override def getStateStoreCheckpointInfo(): StateStoreCheckpointInfo = outcome.map(_.info).getOrElse(
    throw StateStoreErrors.stateStoreOperationOutOfOrder("Cannot get checkpointInfo without committing the store")
  )

  override def toString: String = s"LaminaStateStore[stateStoreId=$id, version=$version]"
}
