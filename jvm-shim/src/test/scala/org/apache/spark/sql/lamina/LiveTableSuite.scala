package org.apache.spark.sql.lamina

import java.nio.charset.StandardCharsets.UTF_8

import scala.collection.mutable

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.table._
import org.apache.spark.unsafe.Platform

/** Where a table goes when a version is opened, and what that costs. */
class LiveTableSuite extends AnyFunSuite {
  private val offset = Platform.BYTE_ARRAY_OFFSET.toLong
  private val families = TestFamilies.one

  private def id(version: Long, letter: Char): String = s"L1.$version.1.o.-.${letter.toString * 32}"

  /** Versions by attempt, each with its base and whole content: what the engine would have on storage. */
  private final class Versions extends StateSource {
    val whole = mutable.Map.empty[String, (String, Map[String, String])]
    val asked = mutable.ArrayBuffer.empty[(String, Option[String])]
    var failAfter: Int = Int.MaxValue
    var failure: () => Exception = () => new IllegalStateException("the stream broke off")
    var missing = 0

    override def load(version: Long, attempt: Option[String], have: Option[Position])(
        onHeader: LoadHeader => Unit
    )(sink: EntrySink): Unit = {
      val (base, rows) = whole(attempt.get)
      asked += ((attempt.get, have.map(_.content)))
      val fromHave = have.exists(_.content == base)
      onHeader(LoadHeader(attempt, fromHave, families, Map(0 -> (rows.size + missing).toLong)))
      val before = if (fromHave) whole.get(base).fold(Map.empty[String, String])(_._2) else Map.empty[String, String]
      var sent = 0
      def send(op: Byte, key: String, value: String): Unit = {
        if (sent == failAfter) throw failure()
        sent += 1
        val (k, v) = (key.getBytes(UTF_8), value.getBytes(UTF_8))
        sink.entry(0, op, k, offset, k.length, v, offset, v.length)
      }
      rows.foreach { case (key, value) => if (!before.get(key).contains(value)) send(Ops.Put, key, value) }
      before.keySet.diff(rows.keySet).foreach(send(Ops.Delete, _, ""))
    }
  }

  private final class Fixture {
    val pool = new PagePool(64L << 20)
    val live = new LiveTable(pool)
    val versions = new Versions

    def contents: Map[String, String] =
      if (!live.at.families.byName.contains("default")) Map.empty
      else {
        val cursor = live.table.addFamily(0, ordered = false, multiValue = false).scan(startsAtBase = true)
        Iterator.continually(cursor.next()).takeWhile(_ != 0L).map { row =>
          val key = Bytes.copy(null, Rows.keyAddress(row), Rows.keyLength(row))
          val value = Bytes.copy(null, Rows.valueAddress(row), Rows.valueLength(row))
          new String(key, UTF_8) -> new String(value, UTF_8)
        }.toMap
      }

    /** A transaction that puts rows, and removes those without a value; then `end`. */
    private def change(rows: Seq[(String, String)])(end: => Unit): Unit = live.synchronized {
      val open = new Open(null, writes = true)
      live.enter(open)
      live.begin(open)
      live.working = families
      val family = live.table.addFamily(0, ordered = false, multiValue = false)
      rows.foreach { case (key, value) =>
        val k = key.getBytes(UTF_8)
        if (value == null) family.remove(k, offset, k.length)
        else family.put(k, offset, k.length, value.getBytes(UTF_8), offset, value.length)
      }
      end
      live.leave(open)
    }

    def abortAfter(rows: (String, String)*): Unit = change(rows)(live.abort())

    /** One attempt of the next version: puts rows, and commits under an id. */
    def commit(attempt: String, rows: (String, String)*): Unit = change(rows) {
      val base = live.at.content
      live.advance(Position(live.at.version + 1, attempt, live.working))
      versions.whole(attempt) = (base, contents)
    }

    def move(version: Long, attempt: String): Move.Value =
      live.synchronized(live.moveTo(version, Option(attempt), versions))

    def rollBack(attempt: String): Unit = live.synchronized(live.rollBack(attempt))
  }

  test("a column family whose id does not fit the format is refused when it is created, and the transaction goes on") {
    val fixture = new Fixture
    import fixture._
    live.synchronized {
      val open = new Open(null, writes = true)
      live.enter(open)
      live.begin(open)
      live.working = families.copy(next = ColumnFamily.MaxId)
      live.create(families.byName("default").copy(name = "last"))
      assert(live.working.byName("last").id == 65535)
      val error = intercept[LaminaError](live.create(families.byName("default").copy(name = "one too many")))
      assert(error.kind == LaminaError.StoreUnsupported && error.getMessage.contains("one too many"))
      assert(live.working.byName.keySet == Set("default", "last"))
      live.abort()
      live.leave(open)
    }
  }

  test("what a closed table held goes back when its last reader has ended, though nobody asks for memory any more") {
    val fixture = new Fixture
    val value = "x" * 60000
    fixture.commit("a", (0 until 800).map(number => s"key $number" -> value): _*)
    fixture.live.table.readersActive(7L)
    val held = fixture.pool.reservedBytes
    assert(held > (45L << 20))
    fixture.live.synchronized(fixture.live.close())
    assert(fixture.pool.reservedBytes > (45L << 20), "rows that were handed out are still there")
    fixture.live.table.readersEnded(7L)
    assert(fixture.pool.reservedBytes <= (32L << 20))
  }

  test("the version that the table has is opened without asking the engine") {
    val f = new Fixture
    f.commit(id(1, 'a'), "k" -> "1")
    assert(f.move(1, id(1, 'a')) == Move.Stayed)
    assert(f.versions.asked.isEmpty)
    assert(f.contents == Map("k" -> "1"))
  }

  test("a version that changed nothing is the same rows under the next number") {
    val f = new Fixture
    f.commit(id(1, 'a'), "k" -> "1")
    assert(f.move(7, id(1, 'a')) == Move.Stayed)
    assert(f.live.at.version == 7)
  }

  test("the base of the last commit is reached by undoing it") {
    val f = new Fixture
    f.commit(id(1, 'a'), "k" -> "1", "gone" -> "x")
    f.commit(id(2, 'b'), "k" -> "2", "new" -> "y")
    assert(f.move(1, id(1, 'a')) == Move.SteppedBack)
    assert(f.contents == Map("k" -> "1", "gone" -> "x"))
    assert(f.versions.asked.isEmpty)
  }

  test("the first of two attempts with equal changes is the second one under another label") {
    val f = new Fixture
    f.commit(id(1, 'a'), "k" -> "1")
    f.commit(id(2, 'b'), "k" -> "2")
    f.move(1, id(1, 'a'))
    f.commit(id(2, 'c'), "k" -> "2")
    assert(f.move(2, id(2, 'b')) == Move.Relabelled)
    assert(f.live.at.content == id(2, 'b'))
    assert(f.versions.asked.isEmpty)
  }

  test("any of several attempts with equal changes is the last one under another label, in any order") {
    val f = new Fixture
    f.commit(id(1, 'a'), "k" -> "1", "gone" -> "x")
    val attempts = Seq('b', 'c', 'd').map(id(2, _))
    attempts.foreach { attempt =>
      f.move(1, id(1, 'a'))
      f.commit(attempt, "k" -> "2", "gone" -> null, "new" -> "y")
    }
    val before = f.live.generation
    for (attempt <- Seq(0, 2, 1, 0).map(attempts)) {
      f.live.synchronized(f.live.startMove(Some(attempt)))
      assert(f.move(2, attempt) == Move.Relabelled)
      f.live.synchronized(f.live.endMove())
    }
    assert(f.live.generation == before, "the rows are the same, so that who reads them goes on")
    assert(f.contents == Map("k" -> "2", "new" -> "y"))
    assert(f.move(1, id(1, 'a')) == Move.SteppedBack)
    assert(f.contents == Map("k" -> "1", "gone" -> "x"))
    assert(f.versions.asked.isEmpty)
  }

  test("an attempt that was aborted in between, and what maintenance moved, leave two attempts equal") {
    val f = new Fixture
    val rows = (0 until 20000).map(number => s"key $number" -> s"${"x" * 100} $number")
    f.commit(id(1, 'a'), rows: _*)
    val changes =
      rows.collect { case (key, _) if key.hashCode % 3 != 0 => key -> (if (key.endsWith("7")) null else "y" * 100) }
    f.commit(id(2, 'b'), changes: _*)
    f.move(1, id(1, 'a'))
    f.commit(id(2, 'c'), scala.util.Random.shuffle(changes): _*)
    f.abortAfter(rows.map { case (key, _) => key -> "z" }: _*)
    f.live.synchronized(while (f.live.reclaim(2)) ())
    assert(f.move(2, id(2, 'b')) == Move.Relabelled)
    assert(f.contents == f.versions.whole(id(2, 'b'))._2)
  }

  test("an attempt that was reached by its increment is known again beside one with equal changes") {
    val f = new Fixture
    f.commit(id(1, 'a'), "k" -> "1")
    f.commit(id(2, 'b'), "k" -> "2")
    f.move(1, id(1, 'a'))
    f.commit(id(2, 'c'), "k" -> "3")
    assert(f.move(2, id(2, 'b')) == Move.CaughtUp)
    f.move(1, id(1, 'a'))
    f.commit(id(2, 'd'), "k" -> "2")
    assert(f.move(2, id(2, 'b')) == Move.Relabelled)
    assert(f.move(2, id(2, 'c')) == Move.CaughtUp)
    assert(f.contents == Map("k" -> "3"))
  }

  test("an attempt whose commit was taken back is not one to come back to") {
    val f = new Fixture
    f.commit(id(1, 'a'), "k" -> "1")
    f.commit(id(2, 'b'), "k" -> "2")
    f.rollBack(id(2, 'b'))
    f.commit(id(2, 'c'), "k" -> "2")
    assert(f.move(2, id(2, 'b')) == Move.CaughtUp)
    assert(f.versions.asked.toSeq == Seq(id(2, 'b') -> Some(id(1, 'a'))))
  }

  test("a table that somebody writes does not say that it holds an attempt that was set aside") {
    val f = new Fixture
    f.commit(id(1, 'a'), "k" -> "1")
    f.commit(id(2, 'b'), "k" -> "2")
    f.move(1, id(1, 'a'))
    f.commit(id(2, 'c'), "k" -> "2")
    f.live.synchronized {
      assert(f.live.holdsRowsOf(Some(id(2, 'b'))))
      val open = new Open(null, writes = true)
      f.live.enter(open)
      f.live.begin(open)
      assert(!f.live.holdsRowsOf(Some(id(2, 'b'))))
      f.live.abort()
      f.live.leave(open)
      assert(f.live.holdsRowsOf(Some(id(2, 'b'))))
    }
  }

  test("the first of two attempts that differ is reached over the base, by its increment alone") {
    val f = new Fixture
    f.commit(id(1, 'a'), "k" -> "1")
    f.commit(id(2, 'b'), "k" -> "2")
    f.move(1, id(1, 'a'))
    f.commit(id(2, 'c'), "k" -> "3")
    assert(f.move(2, id(2, 'b')) == Move.CaughtUp)
    assert(f.contents == Map("k" -> "2"))
    assert(f.versions.asked.toSeq == Seq(id(2, 'b') -> Some(id(1, 'a'))))
    // and its base is still one step away
    assert(f.move(1, id(1, 'a')) == Move.SteppedBack)
    assert(f.contents == Map("k" -> "1"))
  }

  test("applying the first version's increment to the empty store is no reload") {
    val f = new Fixture
    f.commit(id(1, 'a'), "k" -> "1")
    f.move(0, null)
    f.commit(id(1, 'b'), "k" -> "2")
    assert(f.move(1, id(1, 'a')) == Move.CaughtUp)
    assert(f.contents == Map("k" -> "1"))
  }

  test("equal changes on different bases are different versions") {
    val f = new Fixture
    f.commit(id(1, 'a'), "j" -> "1")
    f.commit(id(2, 'b'), "k" -> "2")
    f.move(0, null)
    f.move(0, null)
    f.commit(id(1, 'c'), "j" -> "9")
    f.commit(id(2, 'd'), "k" -> "2")
    assert(f.move(2, id(2, 'b')) != Move.Relabelled)
    assert(f.contents == Map("j" -> "1", "k" -> "2"))
  }

  test("an unrelated version is loaded as a whole") {
    val f = new Fixture
    f.commit(id(1, 'a'), "k" -> "1")
    f.versions.whole(id(9, 'z')) = (id(8, 'y'), Map("other" -> "9"))
    assert(f.move(9, id(9, 'z')) == Move.Loaded)
    assert(f.contents == Map("other" -> "9"))
  }

  test("entries of a column family that was dropped are passed over, whole or on top of what is there") {
    val f = new Fixture
    val key = "k".getBytes(UTF_8)
    val source = new StateSource {
      override def load(version: Long, attempt: Option[String], have: Option[Position])(
          onHeader: LoadHeader => Unit
      )(sink: EntrySink): Unit = {
        onHeader(LoadHeader(attempt, have.isDefined, families, Map(0 -> 1L)))
        val ops = if (have.isDefined) Seq(Ops.Put, Ops.Delete) else Seq(Ops.Delete, Ops.Put)
        ops.foreach(sink.entry(1, _, key, offset, key.length, key, offset, key.length))
        sink.entry(0, Ops.Put, key, offset, key.length, key, offset, key.length)
      }
    }
    assert(f.live.moveTo(2, Some(id(2, 'b')), source) == Move.Loaded)
    assert(f.contents == Map("k" -> "k"))
    assert(f.live.moveTo(3, Some(id(3, 'c')), source) == Move.CaughtUp)
    assert(f.contents == Map("k" -> "k"))
  }

  test("a column family that an aborted transaction left in another shape is not what a later version's rows go to") {
    val f = new Fixture
    f.commit(id(1, 'a'), "k" -> "1")
    f.live.synchronized {
      val open = new Open(null, writes = true)
      f.live.enter(open)
      f.live.begin(open)
      f.live.table.addFamily(1, ordered = false, multiValue = false)
      f.live.abort()
      f.live.leave(open)
    }
    val lists = families.add(id => families.byName("default").copy(id = id, name = "lists", multiValue = true))
    val asked = mutable.ArrayBuffer.empty[Option[String]]
    val key = "k".getBytes(UTF_8)
    val source = new StateSource {
      override def load(version: Long, attempt: Option[String], have: Option[Position])(
          onHeader: LoadHeader => Unit
      )(sink: EntrySink): Unit = {
        asked += have.map(_.content)
        onHeader(LoadHeader(attempt, have.isDefined, lists, Map(0 -> 1L, 1 -> 1L)))
        if (have.isEmpty) sink.entry(0, Ops.Put, key, offset, key.length, key, offset, key.length)
        sink.entry(1, Ops.Put, key, offset, key.length, key, offset, key.length)
      }
    }
    assert(f.live.moveTo(2, Some(id(2, 'b')), source) == Move.Loaded)
    assert(asked == Seq(Some(id(1, 'a')), None))
    assert(f.live.table.family(1).multiValue)
    assert(f.contents == Map("k" -> "k"))
  }

  test("a load that breaks off leaves the version that was there, or none, but never a part") {
    val f = new Fixture
    f.commit(id(1, 'a'), "k" -> "1")
    f.versions.failAfter = 1
    f.versions.whole(id(2, 'b')) = (id(1, 'a'), Map("k" -> "2", "l" -> "2"))
    intercept[IllegalStateException](f.move(2, id(2, 'b')))
    assert(f.contents == Map("k" -> "1"))
    f.versions.whole(id(9, 'z')) = (id(8, 'y'), Map("m" -> "9", "n" -> "9"))
    intercept[IllegalStateException](f.move(9, id(9, 'z')))
    assert(f.contents.isEmpty)
    assert(f.live.at.content == Attempts.Empty)
    f.versions.failAfter = Int.MaxValue
    assert(f.move(9, id(9, 'z')) == Move.Loaded)
    assert(f.contents == Map("m" -> "9", "n" -> "9"))
  }

  test("a load that meets a broken file is asked for once more, as a whole") {
    val f = new Fixture
    f.commit(id(1, 'a'), "k" -> "1")
    f.versions.whole(id(2, 'b')) = (id(1, 'a'), Map("k" -> "2", "l" -> "2"))
    f.versions.failAfter = 1
    f.versions.failure = () => new LaminaError(LaminaError.FileMissing, s"of load ${f.versions.asked.size}")
    val error = intercept[LaminaError](f.move(2, id(2, 'b')))
    assert(error.getMessage.endsWith("of load 2"))
    assert(error.getSuppressed.map(_.getMessage).exists(_.endsWith("of load 1")))
    f.versions.whole(id(9, 'z')) = (id(8, 'y'), Map("m" -> "9", "n" -> "9"))
    f.versions.failure = () => {
      f.versions.failAfter = Int.MaxValue
      new LaminaError(LaminaError.FileDamaged, "the first one alone")
    }
    assert(f.move(9, id(9, 'z')) == Move.Loaded)
    assert(f.contents == Map("m" -> "9", "n" -> "9"))
  }

  test("a version of which other rows are restored than its manifest counts is refused, and the next load is whole") {
    for (onTop <- Seq(false, true)) {
      val f = new Fixture
      f.commit(id(1, 'a'), "k" -> "1")
      f.versions.whole(id(2, 'b')) = (id(if (onTop) 1 else 9, 'a'), Map("k" -> "2", "l" -> "2"))
      f.versions.missing = 1
      val error = intercept[LaminaError](f.move(2, id(2, 'b')))
      assert(error.kind == LaminaError.FileDamaged)
      assert(error.getMessage.contains("3 rows in column family 0, and restoring it gave 2"))
      assert(f.live.at.content == Attempts.Empty)
      f.versions.missing = 0
      assert(f.move(2, id(2, 'b')) == Move.Loaded)
      assert(f.contents == Map("k" -> "2", "l" -> "2"))
    }
  }

  test("a commit whose file did not become durable is taken back") {
    val f = new Fixture
    f.commit(id(1, 'a'), "k" -> "1")
    f.commit(id(2, 'b'), "k" -> "2")
    f.rollBack(id(2, 'b'))
    assert(f.live.at.content == id(1, 'a'))
    assert(f.contents == Map("k" -> "1"))
  }

  test("rolling back a commit that the table has left already changes nothing") {
    val f = new Fixture
    f.commit(id(1, 'a'), "k" -> "1")
    f.commit(id(2, 'b'), "k" -> "2")
    f.move(1, id(1, 'a'))
    f.commit(id(2, 'c'), "k" -> "3")
    f.rollBack(id(2, 'b'))
    assert(f.contents == Map("k" -> "3"))
  }

  test("an empty-store id names no rows") {
    val f = new Fixture
    f.commit(id(1, 'a'), "k" -> "1")
    assert(f.move(0, s"L1.0.1.e.-.${"e" * 32}") == Move.SteppedBack)
    assert(f.contents.isEmpty)
  }

  test("readers of an older version are told apart by generation") {
    val f = new Fixture
    f.commit(id(1, 'a'), "k" -> "1")
    val before = f.live.generation
    f.move(5, id(1, 'a'))
    assert(f.live.generation == before)
    f.commit(id(6, 'b'), "k" -> "2")
    assert(f.live.generation != before)
  }
}
