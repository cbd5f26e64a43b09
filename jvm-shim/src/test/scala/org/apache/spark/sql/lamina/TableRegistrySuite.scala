package org.apache.spark.sql.lamina

import java.nio.file.Files

import scala.collection.mutable

import org.scalatest.concurrent.Eventually.{eventually, timeout}
import org.scalatest.funsuite.AnyFunSuite
import org.scalatest.time.SpanSugar._

import org.apache.spark.TaskContext
import org.apache.spark.sql.lamina.table.PagePool

/** Which provider gets a table of another one, and which table gives way. */
class TableRegistrySuite extends AnyFunSuite {
  private val content = "L1.3.1.o.-.0123456789abcdef0123456789abcdef"
  private val pool = new PagePool(64L << 20)

  private final class Provider(override val stayMs: Long = 60000L) extends TableOwner {
    var lefts = 0
    @volatile var stopped = false
    @volatile var onAsk: () => Unit = () => ()
    override def isStopped: Boolean = { onAsk(); stopped }
    override def leftAll(): Unit = lefts += 1
  }

  private final class Fixture {
    var now = 0L

    /** Those that are outstanding: when each is due, and what it does. */
    val timers = mutable.ArrayBuffer.empty[(Long, () => Unit)]
    val registry = new TableRegistry(() => now, (milliseconds, work) => timers += (now + milliseconds) -> work)
    val Seq(first, second) = Seq.fill(2)(new Provider): @unchecked
    private var stores = 0

    /** Lets time pass until the next timer that is due by then has done its work; false where none is. */
    def isWoken(until: Long): Boolean = timers.filter(_._1 <= until).minByOption(_._1) match {
      case Some(timer @ (due, work)) =>
        now = math.max(now, due)
        timers -= timer
        work()
        true
      case None =>
        now = until
        false
    }

    /** A table of `owner` that holds `content` and that nothing uses. */
    def idle(owner: Provider = first, key: StoreKey = newKey()): (StoreKey, LiveTable) = {
      val live = new LiveTable(pool, registry)
      registry.add(live, owner)
      registry.name(live, key)
      commit(live, owner, content)
      (key, live)
    }

    def newKey(): StoreKey = {
      stores += 1
      StoreKey("checkpoint", 0L, stores, "default")
    }

    /** A table that its provider has left. */
    def parked(stayMs: Long = 60000L): (StoreKey, LiveTable) = {
      val owner = new Provider(stayMs)
      val made = idle(owner)
      registry.leave(owner)
      made
    }

    def open(live: LiveTable, owner: Provider, task: TaskContext = null): Open = live.synchronized {
      assert(registry.enter(live, owner))
      val open = new Open(task, writes = true)
      live.enter(open)
      live.begin(open)
      open
    }

    def commit(live: LiveTable, owner: Provider, attempt: String): Unit = live.synchronized {
      val writer = open(live, owner)
      live.advance(Position(live.at.version + 1, attempt, ColumnFamilies.Empty))
      live.leave(writer)
    }
  }

  test("a table goes to another provider that asks for the attempt it holds, and to one only") {
    val f = new Fixture
    val (key, live) = f.idle()
    assert(f.registry.take(key, content, f.second).contains(live))
    assert(f.registry.isOwned(live, f.second) && !f.registry.isOwned(live, f.first))
    assert(f.registry.take(key, content, f.second).isEmpty)
    assert(!f.registry.enter(live, f.first), "its last owner is refused")
  }

  test("another attempt, another checkpoint or another store gets nothing") {
    val f = new Fixture
    val (key, live) = f.idle()
    assert(f.registry.take(key, content.replace('0', '1'), f.second).isEmpty)
    assert(f.registry.take(key.copy(checkpoint = "made anew"), content, f.second).isEmpty)
    assert(f.registry.take(key.copy(name = "left"), content, f.second).isEmpty)
    assert(f.registry.isOwned(live, f.first))
  }

  test("a table one version ahead is taken for the version that it can step back to") {
    val f = new Fixture
    val (key, live) = f.idle()
    f.commit(live, f.first, "L1.4.1.o.-.ffffffffffffffffffffffffffffffff")
    assert(f.registry.take(key, content, f.second).contains(live))
  }

  test("a provider with an open transaction keeps its table") {
    val f = new Fixture
    val (key, live) = f.idle()
    f.open(live, f.first)
    assert(f.registry.take(key, content, f.second).isEmpty)
    live.synchronized(live.abort())
    assert(f.registry.take(key, content, f.second).contains(live))
  }

  test("memory pressure closes parked tables one by one, least recently used first, and none in use") {
    val f = new Fixture
    val (_, used) = f.idle()
    val tables = Seq.fill(3)(f.parked()._2)
    for (count <- 1 to 3) {
      assert(f.registry.evictOne())
      assert(tables.map(_.closed) == Seq.tabulate(3)(_ < count))
    }
    assert(!f.registry.evictOne())
    assert(!used.closed)
  }

  test("a table of a query that has stopped gives way after all that are parked, and none that an open uses") {
    val f = new Fixture
    val (stopped, busy) = (f.idle()._2, f.idle()._2)
    val (_, running) = f.idle(f.second)
    val (_, parked) = f.parked()
    val writer = f.open(busy, f.first)
    f.first.stopped = true
    assert(f.registry.evictOne() && parked.closed && !stopped.closed)
    assert(f.registry.evictOne() && stopped.closed)
    assert(!f.registry.evictOne() && !busy.closed && !running.closed)
    busy.synchronized { busy.abort(); busy.leave(writer) }
    assert(f.registry.evictOne() && busy.closed)
    assert(!f.registry.isOwned(stopped, f.first), "its provider makes another one")
  }

  test("a call that holds a table's lock waits for no answer of the driver, and goes by those that others have got") {
    val f = new Fixture
    val (_, stopped) = f.idle()
    val (_, used) = f.idle(f.second)
    f.open(used, f.second)
    f.first.stopped = true
    @volatile var asked = Set.empty[Thread]
    f.first.onAsk = () => asked += Thread.currentThread()
    def pressed(): Boolean = used.synchronized(f.registry.evictOne())
    eventually(timeout(60.seconds)) {
      pressed()
      assert(stopped.closed)
    }
    assert(!asked(Thread.currentThread()) && asked.size == 1)
  }

  test("an open makes void that its query has stopped") {
    val f = new Fixture
    val (_, live) = f.idle()
    val (_, used) = f.idle(f.second)
    f.open(used, f.second)
    f.first.stopped = true
    f.registry.askLater()
    eventually(timeout(60.seconds))(assert(f.first.stoppedUntil > f.now))
    f.commit(live, f.first, content)
    assert(!used.synchronized(f.registry.evictOne()) && !live.closed)
    assert(!f.registry.evictOne(asks = false) && !live.closed, "who opens one of hundreds does not")
    assert(f.registry.evictOne() && live.closed, "who holds no lock asks")
  }

  test("where a store is loaded anew its parked tables are closed, and neither those in use nor another store's") {
    val f = new Fixture
    val (key, parked) = f.parked()
    val (_, kept) = f.parked()
    val (_, used) = f.idle(key = key)
    f.registry.evictOf(key)
    assert(parked.closed)
    assert(!used.closed && !kept.closed)
  }

  test("a table stays for its time, and without a time to stay is closed at once") {
    val f = new Fixture
    val (_, stays) = f.parked(stayMs = 100L)
    assert(f.parked(stayMs = 0L)._2.closed)
    assert(f.timers.map(_._1) == Seq(101L))
    f.now = 99L
    f.registry.expire()
    assert(!stays.closed)
    f.now = 100L
    f.registry.expire()
    assert(stays.closed)
  }

  test("few timers are outstanding however often tables are handed over, and each table goes when its time is over") {
    val f = new Fixture
    // in falling order, so that each timer is for an earlier time than those before it
    val stays = Seq(3600000L, 60000L, 10000L)
    val tables = stays.map(stay => (stay, f.parked(stay)))
    for (batch <- 1L to 500L) {
      while (f.isWoken(batch * 1000L)) ()
      for ((stay, (key, live)) <- tables) {
        val next = new Provider(stay)
        assert(f.registry.take(key, content, next).contains(live))
        f.registry.leave(next)
      }
      assert(f.timers.size <= stays.size)
    }
    for ((stay, (_, live)) <- tables.reverse) {
      while (f.isWoken(500000L + stay - 1L)) ()
      assert(!live.closed)
      while (f.isWoken(500000L + stay + 1L)) ()
      assert(live.closed)
    }
    assert(f.timers.isEmpty)
  }

  test("a provider that is closed keeps its table until its last open ends, and is told when it has none") {
    val f = new Fixture
    val (key, live) = f.idle()
    val task = TaskContext.empty()
    val writer = f.open(live, f.first, task)
    f.registry.leave(f.first)
    assert(f.registry.state(live) == Ownership.Leaving && f.first.lefts == 0)
    assert(f.registry.enter(live, f.first), "what it has open goes on")
    live.synchronized { live.abort(); live.leave(writer) }
    assert(f.registry.state(live) == Ownership.Parked && f.first.lefts == 1)
    assert(!f.registry.enter(live, f.first))
    assert(f.registry.take(key, content, f.second).contains(live))
    assert(f.registry.state(live) == Ownership.InUse)
  }

  test("a table that a closed provider takes or makes is given up when nothing uses it") {
    val f = new Fixture
    val (key, live) = f.parked()
    f.registry.leave(f.second)
    assert(f.registry.take(key, content, f.second).contains(live))
    f.registry.restAll(f.second)
    assert(f.registry.state(live) == Ownership.Parked)
    val made = new LiveTable(pool, f.registry)
    f.registry.add(made, f.second)
    f.registry.restAll(f.second)
    assert(made.closed, "it holds nothing")
  }

  test("a table that is being taken is not evicted, and pressure does not wait for one in use") {
    val f = new Fixture
    val (key, live) = f.parked()
    var taken = Option.empty[LiveTable]
    val taker = new Thread(() => taken = f.registry.take(key, content, f.second))
    live.synchronized {
      taker.start()
      eventually(timeout(60.seconds))(assert(taker.getState == Thread.State.BLOCKED))
      val (_, other) = f.idle()
      other.synchronized {
        val presser = new Thread(() => f.registry.evictOf(f.newKey()))
        presser.start()
        presser.join(60000L)
        assert(!presser.isAlive, "it waits for a table in use")
      }
    }
    taker.join()
    assert(taken.contains(live))
    assert(!f.registry.evictOne() && !live.closed)
  }

  test("what may happen to a table is what docs/design/opens.md says") {
    val text = Files.readString(RepositoryEngine.sources.getParent.resolve("docs/design/opens.md"))
    val lines = text.split("## Who owns a table")(1).linesIterator.filter(_.startsWith("|")).toSeq
    val cells = lines.map(_.split('|').toSeq.map(_.trim).drop(1))
    val documented = for {
      row <- cells.drop(2)
      (action, next) <- cells.head.zip(row).tail
      if next != "–"
    } yield (row.head, action) -> next.replace("parked or closed", "parked")
    val performed = TableRegistry.transitions.map { case ((state, action), next) =>
      (words(state), action.toString) -> words(next)
    }
    assert(documented.toMap == performed)
  }

  private def words(state: Ownership): String = state.toString.toLowerCase.replace('_', ' ')

  test("a table is taken by one of many that ask for it, or evicted, and never both") {
    for (_ <- 1 to 200) {
      val f = new Fixture
      val (key, live) = f.parked()
      val takers = Seq.fill(3)(new Provider)
      val taken = new java.util.concurrent.ConcurrentLinkedQueue[LiveTable]()
      val threads = new Thread(() => { f.registry.evictOne(); () }) +:
        takers.map(taker => new Thread(() => f.registry.take(key, content, taker).foreach(taken.add)))
      threads.foreach(_.start())
      threads.foreach(_.join())
      // a provider may take it from another one that has not entered it: one of them has it in the end
      assert(takers.count(f.registry.isOwned(live, _)) == (if (live.closed) 0 else 1))
      assert(live.closed == taken.isEmpty)
    }
  }
}
