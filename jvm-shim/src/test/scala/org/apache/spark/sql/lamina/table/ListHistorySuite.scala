package org.apache.spark.sql.lamina.table

import scala.collection.mutable
import scala.util.Random

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.unsafe.Platform

/**
 * Lists in random histories beside a map of strings, compared after every step: many appends in one transaction, readers of
 * every kind that keep what they got, transactions that are taken back, and a pool so small that its cap is reached.
 *
 * A failure names its seed and step. `-Dlamina.lists.seed=N` runs that seed alone, `-Dlamina.lists.seeds=N` so many, from
 * `-Dlamina.lists.first=N` on.
 */
class ListHistorySuite extends AnyFunSuite {
  import ListHistorySuite._

  private def property(name: String): Option[Long] = sys.props.get(s"lamina.lists.$name").map(_.toLong)
  private val first = property("seed").orElse(property("first")).getOrElse(1L)
  private val seeds = if (property("seed").isDefined) 1L else property("seeds").getOrElse(60L)

  test("lists are what a map says after every step of a history, and so is what readers hold of them") {
    var (steps, atCap) = (0, 0)
    for (seed <- first until first + seeds) {
      val history = new History(seed)
      try history.run()
      catch {
        case error: Throwable =>
          throw new AssertionError(s"seed $seed, after ${history.done.takeRight(30).mkString(" ")}: $error", error)
      } finally {
        history.close()
        steps += history.done.size
        atCap += history.atCap
      }
      assert(history.pool.reservedBytes == 0, s"seed $seed: bytes in use after close")
    }
    info(s"seeds $first to ${first + seeds - 1}: $steps steps, of which $atCap ended at the cap")
    assert(seeds < 10 || atCap > 0)
  }
}

private object ListHistorySuite {
  import TableModel.{text, Base}

  private type State = Map[String, String]

  /** What a reader got of a row: its value then, and where it was if that address was handed out. */
  private final case class Held(row: Long, address: Option[Long], value: String)

  private final class Reader {
    val held = mutable.ArrayBuffer.empty[Held]
    var cursor: RowCursor = _
  }

  private final class History(seed: Long) {
    private val random = new Random(seed)
    val pool = new PagePool((3 + random.nextInt(20)) * (1L << 20) / 4)
    private val table = new StoreTable(pool)
    private val lists = table.addFamily(0, ordered = random.nextBoolean(), multiValue = true)
    private val keys = Seq.tabulate(2 + random.nextInt(6))(number => "key" * (number % 3) + number)
    private val readers = mutable.LinkedHashMap.empty[Long, Reader]
    private var opened = 0L
    private var base, state: State = Map.empty
    private var older = Option.empty[State]
    private var lost = false
    val done = mutable.ArrayBuffer.empty[String]
    var atCap = 0

    def run(): Unit = {
      if (random.nextInt(3) == 0 && pool.maxBytes > (2L << 20)) step("fill")(fill())
      var left = 120
      while (left > 0 && !lost) {
        next()
        left -= 1
      }
    }

    /** All readers end, and the table too. */
    def close(): Unit = {
      table.close()
      readers.keys.foreach(table.readersEnded)
      pool.trim()
    }

    private def next(): Unit = {
      val key = keys(random.nextInt(keys.size))
      random.nextInt(24) match {
        case 0 | 1 => step(s"put($key)")(put(key, value(random.nextInt(if (random.nextBoolean()) 3000 else 80000))))
        case 2 => step(s"remove($key)")(remove(key))
        case 3 | 4 => step("commit")(commit())
        case 5 => step("abort")(abort())
        case 6 => step("stepBack")(stepBack())
        case 7 => step("maintain")(maintain())
        case 8 => step("opens")(open())
        case 9 => step("ends")(end())
        case 10 | 11 => step("reads")(read(key))
        case 12 => step("walks")(walk())
        case 13 => step("poison")(poison())
        case 14 | 15 | 16 => step(s"append($key)")(append(key, value(random.nextInt(5000))))
        case _ => burst(key)
      }
    }

    /** Many small appends, to one list or to all in turns. */
    private def burst(key: String): Unit = {
      val (times, bytes, all) = (random.nextInt(150), 1 + random.nextInt(400), random.nextInt(4) == 0)
      step(s"$times×${if (all) "all" else key}") {
        for (number <- 1 to times)
          append(if (all) keys(number % keys.size) else key, value(bytes))
      }
    }

    private def step(name: String)(action: => Unit): Unit = {
      done += name
      try action
      catch {
        case error: LaminaError if error.kind == LaminaError.MemoryCap =>
          atCap += 1
          if (table.inTransaction && random.nextBoolean()) abort()
      }
      if (!lost) check()
    }

    private def value(bytes: Int): String = ('a' + random.nextInt(26)).toChar.toString * bytes

    private def call[A](key: String)(body: (Array[Byte], Int) => A): A = {
      val bytes = TableModel.bytes(key)
      body(bytes, bytes.length)
    }

    /** A version that is restored, newest entries first. */
    private def fill(): Unit = {
      for (key <- keys if random.nextBoolean()) call(key) { (k, length) =>
        val parts = Seq.fill(1 + random.nextInt(4))(value(random.nextInt(30000)))
        for ((part, number) <- parts.zipWithIndex.reverse) {
          val v = TableModel.bytes(part)
          val op = if (number == 0 && random.nextBoolean()) Ops.Put else Ops.Append
          lists.filling.add(KeyHash.hash(k, Base, length), op, k, Base, length, v, Base, v.length)
        }
        state += key -> parts.mkString
      }
      table.endFill()
      base = state
    }

    private def begin(): Unit = if (!table.inTransaction) table.begin()

    private def append(key: String, elements: String): Unit = {
      begin()
      val v = TableModel.bytes(elements)
      call(key)((k, length) => lists.append(k, Base, length, v, Base, v.length))
      state += key -> (state.getOrElse(key, "") + elements)
    }

    private def put(key: String, list: String): Unit = {
      begin()
      val v = TableModel.bytes(list)
      call(key)((k, length) => lists.put(k, Base, length, v, Base, v.length))
      state += key -> list
    }

    private def remove(key: String): Unit = {
      begin()
      val removed = call(key)((k, length) => lists.remove(k, Base, length))
      assert(removed == state.contains(key), s"remove said $removed")
      state -= key
    }

    private def commit(): Unit = {
      begin()
      var replayed = base
      table.changeSet { (_, op, keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength) =>
        val (key, value) = (text(keyBase, keyOffset, keyLength), text(valueBase, valueOffset, valueLength))
        if (op == Ops.Delete) replayed -= key
        else replayed += key -> (if (op == Ops.Append) replayed.getOrElse(key, "") + value else value)
      }
      assert(replayed == state, "the change set applied to the base does not give the version")
      table.commit()
      older = Some(base)
      base = state
    }

    private def abort(): Unit = {
      table.abort()
      state = base
    }

    private def stepBack(): Unit = {
      abort()
      older.foreach { version =>
        // half a step back is no version at all: whoever owns the table empties it
        lost = true
        table.stepBack()
        lost = false
        base = version
        state = version
        older = None
      }
    }

    private def maintain(): Unit = {
      var left = random.nextInt(20)
      while (left > 0 && table.maintain(2)) left -= 1
    }

    private def open(): Unit = if (readers.size < 4) {
      opened += 1
      table.readersActive(opened)
      readers(opened) = new Reader
    }

    private def end(): Unit = if (readers.nonEmpty) {
      val id = readers.keys.toSeq(random.nextInt(readers.size))
      readers -= id
      table.readersEnded(id)
    }

    private def anyReader: Option[Reader] =
      if (readers.isEmpty) None else Some(readers.values.toSeq(random.nextInt(readers.size)))

    /** A reader takes the row of a key: to keep its address, to look that up each time, or of the version before. */
    private def read(key: String): Unit = anyReader.foreach { reader =>
      call(key) { (k, length) =>
        random.nextInt(3) match {
          case 0 => hold(reader, lists.get(k, Base, length), isKept = true)
          case 1 => hold(reader, lists.find(k, Base, length), isKept = false)
          case _ => hold(reader, lists.getBase(k, Base, length), isKept = true)
        }
      }
    }

    /** A reader begins a walk, or goes on with it; each row that it comes to is held. */
    private def walk(): Unit = anyReader.foreach { reader =>
      if (reader.cursor == null) {
        val inBase = random.nextBoolean()
        reader.cursor =
          if (lists.ordered && random.nextBoolean()) lists.range(null, null, inBase) else lists.scan(inBase)
      }
      var left = 1 + random.nextInt(3)
      while (left > 0 && reader.cursor != null) {
        val row = reader.cursor.next()
        if (row == 0L) reader.cursor = null
        else hold(reader, row, isKept = true)
        left -= 1
      }
    }

    private def hold(reader: Reader, row: Long, isKept: Boolean): Unit = if (row != 0L) {
      val address = Rows.valueAddress(row)
      reader.held += Held(row, if (isKept) Some(address) else None, text(null, address, Rows.valueLength(row)))
    }

    /** Whoever gets pages that nobody should read any more writes into them. */
    private def poison(): Unit = {
      val pages = mutable.ArrayBuffer.empty[Page]
      try PagePool.inBackground(while (true) pages += pool.page())
      catch { case _: LaminaError => () }
      pages.foreach { page =>
        Platform.setMemory(page.address, 0x5a, page.bytes)
        pool.give(page)
      }
    }

    private def check(): Unit = {
      for (key <- keys) call(key) { (k, length) =>
        assert(TableModel.value(lists.find(k, Base, length)) == state.get(key), s"list $key")
        // at the cap there may be no memory to find the version before
        try
          assert(TableModel.value(lists.getBase(k, Base, length)) == base.get(key), s"list $key in the version before")
        catch { case error: LaminaError if error.kind == LaminaError.MemoryCap => () }
      }
      assert(table.rows(0) == state.size)
      assert(table.keyValueBytes(0) == state.map { case (key, value) => key.length + value.length }.sum)
      for ((id, reader) <- readers; held <- reader.held; at <- held.address.toSeq :+ Rows.valueAddress(held.row))
        assert(text(null, at, held.value.length) == held.value, s"what reader $id holds")
    }
  }
}
