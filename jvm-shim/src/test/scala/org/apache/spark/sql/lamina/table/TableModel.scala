package org.apache.spark.sql.lamina.table

import java.nio.charset.StandardCharsets.ISO_8859_1

import scala.collection.immutable.TreeMap
import scala.collection.mutable

import org.scalacheck.Prop

import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.unsafe.Platform

/** A store table beside a Scala map that does the same; `check` compares all there is to compare. */
private[table] final class TableModel(
    maxBytes: Long = 1L << 30,
    layered: Boolean = false,
    inMemory: Set[Int] = Set.empty
) {
  import TableModel._

  val pool = new PagePool(maxBytes)

  /** Asked before anything is put on the disk: whether that fails. */
  var diskFails: () => Boolean = () => false

  val table = new StoreTable(pool, layered, () => new MemorySpill(() => diskFails()))
  addFamilies()

  private def addFamilies(): Unit = {
    table.addFamily(Plain, ordered = false, multiValue = false, inMemory(Plain))
    table.addFamily(Sorted, ordered = true, multiValue = false, inMemory(Sorted))
    table.addFamily(Lists, ordered = false, multiValue = true, inMemory(Lists))
  }

  var base: State = Map.empty
  var state: State = Map.empty
  private var older: Option[State] = None

  /** The version before, also where nothing can be stepped back to. */
  private var former: Option[State] = None

  /** That of `base`. */
  private var version = 0L
  private val held = mutable.LinkedHashMap.empty[Long, Seq[HeldRow]]
  private var holders = 0L
  private val touches = mutable.Map.empty[(Int, String), Int]
  private val putOrRemoved = mutable.Set.empty[(Int, String)]

  def begin(): Unit = if (!table.inTransaction) table.begin()

  def put(family: Int, key: String, value: String): Unit = {
    begin()
    val (k, v) = (bytes(key), bytes(value))
    table.family(family).put(k, Base, k.length, v, Base, v.length)
    state += (family, key) -> value
    putOrRemoved += ((family, key))
    touch(family, key)
  }

  def append(key: String, value: String): Unit = {
    begin()
    val (k, v) = (bytes(key), bytes(value))
    table.family(Lists).append(k, Base, k.length, v, Base, v.length)
    state += (Lists, key) -> (state.getOrElse((Lists, key), "") + value)
    touch(Lists, key)
  }

  def remove(family: Int, key: String): Boolean = {
    begin()
    val k = bytes(key)
    val removed = table.family(family).remove(k, Base, k.length)
    assert(removed == state.contains((family, key)), s"remove $key said $removed")
    state -= ((family, key))
    putOrRemoved += ((family, key))
    touch(family, key)
    removed
  }

  def dropFamily(family: Int): Unit = {
    begin()
    table.dropFamily(family)
    putOrRemoved ++= state.keys.filter(_._1 == family)
    state = state.filterNot(_._1._1 == family)
    base.keys.filter(_._1 == family).foreach(key => touch(key._1, key._2))
  }

  /** Checks the change set against the difference of the versions, then commits. */
  def commit(): ChangeSummary = {
    begin()
    table.settleSpill()
    val seen = mutable.Set.empty[(Int, String)]
    var replayed = base
    val unchanged = table.isUnchanged
    val summary = table.changeSet { (family, op, keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength) =>
      val key = (family, text(keyBase, keyOffset, keyLength))
      assert(seen.add(key), s"$key is twice in the change set")
      val value = text(valueBase, valueOffset, valueLength)
      op match {
        case Ops.Put =>
          assert(putOrRemoved.contains(key), s"$key was only appended to")
          replayed += key -> value
        case Ops.Append => replayed += key -> (replayed.getOrElse(key, "") + value)
        case Ops.Delete =>
          assert(replayed.contains(key), s"delete of $key, which the base does not have")
          replayed -= key
        case other => throw new AssertionError(s"op $other")
      }
    }
    assert(replayed == state, "the change set applied to the base does not give the version")
    assert(unchanged == seen.isEmpty && summary.rows == seen.size)
    // A key that was written once and equals its base is left out; one that came back by several writes may be in.
    seen.foreach(key => assert(base.get(key) != state.get(key) || touches(key) > 1, s"$key did not change"))
    older = if (table.isSpilled) None else Some(base)
    former = Some(base)
    version += 1
    table.commit(version)
    base = state
    touches.clear()
    putOrRemoved.clear()
    summary
  }

  def abort(): Unit = if (table.inTransaction) {
    table.abort()
    state = base
    touches.clear()
    putOrRemoved.clear()
  }

  def stepBack(): Boolean = {
    abort()
    assert(table.canStepBack == older.isDefined)
    older.exists { previous =>
      table.stepBack()
      version -= 1
      base = previous
      state = previous
      older = None
      former = None
      true
    }
  }

  /** The version that the table is at comes below, or the one before it; between transactions. */
  def raise(newest: Boolean): Unit = {
    abort()
    val (number, there) = if (newest || former.isEmpty) (version, base) else (version - 1, former.get)
    if (table.below == null || table.below.version <= number) {
      table.standOn(new MemoryBelow(number, there), isTable = number == version)
      if (number == version) {
        table.forgetUndo()
        older = None
      }
    }
  }

  /** What the open transaction has changed goes to the disk. */
  def spill(): Unit = {
    begin()
    table.spill()
    ()
  }

  /** The change set is sent, and the transaction goes on. */
  def sendInVain(): Unit = {
    begin()
    table.settleSpill()
    table.unsettle()
  }

  /** All that differs from the state below goes to the disk. */
  def relieve(): Unit = {
    table.at = version
    val before = table.spillsBelow
    table.relieve()
    if (table.spillsBelow > before) older = None
  }

  def cut(): Unit = {
    abort()
    table.cut(version)
  }

  def forget(): Unit = {
    abort()
    table.forgetClean(Long.MaxValue)
  }

  /** The table anew: of the state below, and the changes that came after it, newest first. */
  def restore(changes: Seq[(Byte, Int, String, String)], below: State, at: Long): Unit = {
    while (held.nonEmpty) release()
    table.close()
    addFamilies()
    table.standOn(new MemoryBelow(at, below))
    val entries = new RestoredEntries(table)
    entries.start(onTop = false)
    changes.foreach { case (op, family, key, value) =>
      val (k, v) = (bytes(key), bytes(value))
      entries.entry(family, op, k, Base, k.length, v, Base, v.length)
    }
    inMemory.foreach(table.hold(_, entries))
    table.endFill()
    for (family <- Families if !inMemory(family)) {
      val rows = base.collect { case ((`family`, key), value) => key.length + value.length.toLong }
      table.family(family).setCounts(rows.size.toLong, rows.sum)
    }
    older = None
    former = None
  }

  def maintain(): Unit = while (table.maintain(2)) ()

  /** A reader takes all rows, of the open transaction and of its base, and keeps them until `release`. */
  def hold(): Unit = if (!layered) {
    holders += 1
    table.readersActive(holders)
    held(holders) = (state.keys ++ base.keys).toSeq.flatMap { case (family, key) =>
      val k = bytes(key)
      val rows = Seq(table.family(family).get(k, Base, k.length), table.family(family).getBase(k, Base, k.length))
      rows.filter(_ != 0L).distinct.map(row => HeldRow(row, Rows.valueAddress(row), value(row).get))
    }
  }

  /** The reader that has held its rows for the longest time ends; all of them are still as it got them. */
  def release(): Unit = held.headOption.foreach { case (holder, rows) =>
    rows.foreach { case HeldRow(row, address, expected) =>
      // An iterator fetches rows ahead, and finds out later where their values are.
      for (at <- Seq(address, Rows.valueAddress(row))) {
        assert(text(null, at, expected.length) == expected, s"a row that reader $holder holds was changed")
      }
    }
    held -= holder
    table.readersEnded(holder)
  }

  def check(): Unit = {
    for (family <- Seq(Plain, Sorted, Lists)) {
      val expected = state.collect { case ((`family`, key), value) => key -> value }
      assert(scan(family, base = false) == expected, s"scan of family $family")
      assert(
        table.rows(family) == expected.size,
        s"row count of family $family: ${table.rows(family)} is not ${expected.size}"
      )
      assert(table.keyValueBytes(family) == expected.map(e => e._1.length + e._2.length).sum)
      if (table.inTransaction) {
        val before = base.collect { case ((`family`, key), value) => key -> value }
        assert(scan(family, base = true) == before, s"base scan of family $family")
        (before.keySet ++ expected.keySet).foreach { key =>
          assert(getBase(family, key) == before.get(key), s"base of $key")
        }
      }
      expected.keys.foreach(key => assert(get(family, key) == expected.get(key), s"get $key"))
    }
    assert(parts(3).flatten.toMap == state, "the parts of a rewrite are not the version")
  }

  def checkRange(from: Option[String], until: Option[String], base: Boolean): Unit = {
    val source = if (base) this.base else state
    val expected = source.toSeq
      .collect { case ((Sorted, key), value) => key -> value }
      .filter(e => from.forall(_ <= e._1) && until.forall(e._1 < _))
      .sortBy(_._1)
    val cursor = table.family(Sorted).range(from.map(bytes).orNull, until.map(bytes).orNull, base)
    assert(drain(cursor) == expected, s"range $from until $until, base $base")
  }

  def get(family: Int, key: String): Option[String] = {
    val k = bytes(key)
    value(table.family(family).get(k, Base, k.length))
  }

  def getBase(family: Int, key: String): Option[String] = {
    val k = bytes(key)
    value(table.family(family).getBase(k, Base, k.length))
  }

  def scan(family: Int, base: Boolean): Map[String, String] = {
    val rows = drain(table.family(family).scan(base))
    assert(rows.map(_._1).distinct.size == rows.size, "a key is there twice")
    rows.toMap
  }

  def snapshot(): State = {
    var all: State = Map.empty
    table.snapshot { (family, op, keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength) =>
      assert(op == Ops.Put)
      all += (family, text(keyBase, keyOffset, keyLength)) -> text(valueBase, valueOffset, valueLength)
    }
    all
  }

  /** The rows of each part; a key in two of them fails. */
  def parts(number: Int): Seq[State] = {
    var seen = Set.empty[(Int, String)]
    (0 until number).map { part =>
      var rows: State = Map.empty
      table.rewrite(
        part,
        number,
        (family, op, keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength) => {
          assert(op == Ops.Put)
          val key = (family, text(keyBase, keyOffset, keyLength))
          assert(!seen(key), s"$key is there twice")
          seen += key
          rows += key -> text(valueBase, valueOffset, valueLength)
        }
      )
      rows
    }
  }

  /** Everything is removed and no version back is left: no row, buffer or log may take room any more. */
  def checkEmptied(): Unit = {
    while (held.nonEmpty) release()
    abort()
    Seq(Plain, Sorted, Lists).foreach(dropFamily)
    (1 to 3).foreach(_ => commit())
    maintain()
    val memory = table.memory
    val live = Seq(Plain, Sorted, Lists).map(table.family(_).liveBytes)
    assert(live.forall(_ == 0), s"bytes of each family that are alive after all was removed: $live")
    // The page that is filled last stays.
    assert(memory.pageBytes <= 3 * PagePool.PageBytes && memory.undoBytes == 0, s"left after all was removed: $memory")
  }

  def close(): Unit = {
    held.keys.foreach(table.readersEnded)
    table.close()
  }

  private def touch(family: Int, key: String): Unit = touches((family, key)) = touches.getOrElse((family, key), 0) + 1

  private def drain(cursor: RowCursor): Seq[(String, String)] =
    Iterator.continually(cursor.next()).takeWhile(_ != 0L).map(row => keyOf(row) -> value(row).get).toVector
}

private[table] object TableModel {
  private final case class HeldRow(row: Long, valueAddress: Long, value: String)

  type State = Map[(Int, String), String]
  val Plain = 0
  val Sorted = 1
  val Lists = 5
  val Families: Seq[Int] = Seq(Plain, Sorted, Lists)
  val Base: Long = Platform.BYTE_ARRAY_OFFSET.toLong

  /** Whether a table that was used, and is closed then, leaves no memory in use. */
  def leavesNothing(use: TableModel => Unit, layered: Boolean = false, inMemory: Set[Int] = Set.empty): Prop = {
    val model = new TableModel(layered = layered, inMemory = inMemory)
    try use(model)
    finally model.close()
    model.pool.trim()
    Prop(model.pool.reservedBytes == 0L) :| s"${model.pool.reservedBytes} bytes stay in use after close"
  }

  /** One character is one byte, so that the order of strings is the order of bytes. */
  def bytes(text: String): Array[Byte] = text.getBytes(ISO_8859_1)

  def text(base: AnyRef, offset: Long, length: Int): String = {
    val copy = new Array[Byte](length)
    Platform.copyMemory(base, offset, copy, Base, length)
    new String(copy, ISO_8859_1)
  }

  def keyOf(row: Long): String = text(null, Rows.keyAddress(row), Rows.keyLength(row))

  def value(row: Long): Option[String] =
    if (row == 0L) None else Some(text(null, Rows.valueAddress(row), Rows.valueLength(row)))
}

/** The state of a version in a map. */
private[table] final class MemoryBelow(override val version: Long, state: TableModel.State) extends Below {
  import TableModel._

  private val families = state.groupBy(_._1._1).map { case (family, rows) =>
    family -> TreeMap(rows.toSeq.map { case ((_, key), value) => key -> value }: _*)
  }

  override def get(family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): Array[Byte] =
    state.get((family, text(keyBase, keyOffset, keyLength))).map(bytes).orNull

  override def read(family: Int, from: Array[Byte], above: Boolean, until: Array[Byte], into: BelowEntries): Unit =
    MemoryBelow.read(families.getOrElse(family, TreeMap.empty[String, String]), from, above, until, into)(bytes)
}

private[table] object MemoryBelow {
  import TableModel.bytes

  def read[A](
      all: TreeMap[String, A],
      from: Array[Byte],
      above: Boolean,
      until: Array[Byte],
      into: BelowEntries
  )(valueOf: A => Array[Byte]): Unit = {
    val start = if (from == null) "" else new String(from, ISO_8859_1)
    val rows = all.iteratorFrom(start)
      .dropWhile(row => above && from != null && row._1 == start)
      .takeWhile(row => until == null || row._1 < new String(until, ISO_8859_1))
    // few at a time, so that scans read often
    while (rows.hasNext && into.count < 3) {
      val (key, value) = rows.next()
      into.add(bytes(key), valueOf(value))
    }
    into.isLast = !rows.hasNext
  }
}

/** Changes of a transaction in maps. */
private[table] final class MemorySpill(fails: () => Boolean = () => false) extends Spill {
  import TableModel._

  check()

  private def check(): Unit =
    if (fails()) throw new LaminaError(LaminaError.StorageFailed, "no space is left on the disk")

  private var families = Map.empty[Int, TreeMap[String, Array[Byte]]]
  private var isClosed = false

  override def bytes: Long = families.values.flatMap(_.values.map(_.length.toLong)).sum

  override def get(family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): Array[Byte] =
    of(family).getOrElse(text(keyBase, keyOffset, keyLength), null)

  override def put(family: Int, key: Long, keyLength: Int, entry: Array[Byte]): Unit = {
    check()
    families += family -> of(family).updated(text(null, key, keyLength), entry)
  }

  /** A value that a key got, or that it was removed. */
  def set(family: Int, key: String, value: Option[String]): Unit = {
    val header = Array[Byte](if (value.isEmpty) Ops.Delete else Ops.Put, 0, 0, 0, 0)
    families += family -> of(family).updated(key, header ++ value.fold(Array.emptyByteArray)(TableModel.bytes))
  }

  override def flush(): Unit = check()

  override def read(family: Int, from: Array[Byte], above: Boolean, until: Array[Byte], into: BelowEntries): Unit =
    MemoryBelow.read(of(family), from, above, until, into)(identity)

  override def close(): Unit = {
    assert(!isClosed, "closed twice")
    isClosed = true
  }

  private def of(family: Int): TreeMap[String, Array[Byte]] = {
    assert(!isClosed, "read after it was closed")
    families.getOrElse(family, TreeMap.empty[String, Array[Byte]])
  }
}
