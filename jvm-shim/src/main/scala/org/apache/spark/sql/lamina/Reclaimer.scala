package org.apache.spark.sql.lamina

import java.util.concurrent.{CountDownLatch, LinkedBlockingQueue, ThreadPoolExecutor, TimeUnit}
import java.util.concurrent.atomic.AtomicLong
import java.util.concurrent.locks.LockSupport

import scala.collection.mutable

import org.apache.spark.internal.Logging
import org.apache.spark.sql.lamina.table.PagePool
import org.apache.spark.sql.lamina.wire.DaemonThreads

/**
 * Reclaims dead pages of tables after their commits, a few pages at a time, so that neither a commit nor the next open waits
 * for more than one step. One thread for all stores of this JVM; it ends when there is nothing to do.
 */
object Reclaimer extends Logging {
  private val PagesPerStep = 4

  /** Between steps, so that who waits for the table gets it. */
  private val PauseNanos = 50000L

  private val executor = oneThread("lamina-reclaim")
  private val room = oneThread("lamina-room")

  private def oneThread(name: String): ThreadPoolExecutor = {
    val pool =
      new ThreadPoolExecutor(1, 1, 10L, TimeUnit.SECONDS, new LinkedBlockingQueue[Runnable], DaemonThreads(name))
    pool.allowCoreThreadTimeOut(true)
    pool
  }

  /** Reclaims what the last transaction of a table left. Stops when the next one begins. */
  def submit(live: LiveTable): Unit = execute { () =>
    try while (live.synchronized(live.reclaim(PagesPerStep))) LockSupport.parkNanos(PauseNanos)
    catch {
      case error: Exception => logWarning("Pages of a table could not be reclaimed; its rows are not affected", error)
    }
  }

  /**
   * Has tables at rest forget rows that are on the disk, too, and put others there where it `relieves` them; whether memory came of
   * it. Another thread does it, since the caller may hold the lock of a table. Callers who ask meanwhile wait for the same.
   *
   * @param patienceMs how long it is waited while nothing happens: others who hold a table's lock may wait like the caller
   */
  def makeRoom(
      registry: TableRegistry,
      pool: PagePool,
      relieves: Boolean = true,
      patienceMs: Long = PatienceMs
  ): Boolean = {
    val (round, isJoined) = joined(registry, pool, relieves)
    round.exists(_.await(patienceMs, isJoined)) || isJoined && {
      // that one may have passed tables by which have come to rest since
      val (next, isJoinedToo) = joined(registry, pool, relieves)
      next != round && next.exists(_.await(patienceMs, isJoinedToo))
    }
  }

  /** The round that goes on, or a new one; whether it was there. */
  private def joined(registry: TableRegistry, pool: PagePool, relieves: Boolean): (Option[Round], Boolean) =
    rounds.synchronized {
      rounds.get((pool, relieves)).filter(!_.isOver) match {
        case None =>
          val round = begun(registry.layeredAtRest(pool), relieves)
          round.foreach(rounds((pool, relieves)) = _)
          (round, false)
        case found => (found, true)
      }
    }

  /** The rounds in which tables are asked now, by what they are asked for. */
  private val rounds = mutable.Map.empty[(PagePool, Boolean), Round]

  private def begun(tables: Seq[LiveTable], relieves: Boolean): Option[Round] = Option.when(tables.nonEmpty) {
    val round = new Round(tables.size)
    // one by one: who waits for one table holds up no other caller
    tables.foreach(table => room.execute(() => round.end(round.ask(table, relieves))))
    round
  }

  /** Whether the thread that makes room works under a table's lock, and how often it has: whichever round it is for. */
  @volatile private var works = false
  private val steps = new AtomicLong()

  /** Tables at rest that are asked for memory, one after the other. */
  private final class Round(tables: Int) {
    private val done = new CountDownLatch(tables)
    private val gained = new AtomicLong()

    def isOver: Boolean = done.getCount == 0

    /** Asks one of the tables. */
    def end(ask: => Unit): Unit =
      try ask
      catch {
        case error: Exception => logWarning("Rows of a table could not be forgotten; they are not affected", error)
      } finally {
        done.countDown()
        rounds.synchronized(rounds.filterInPlace((_, other) => !other.isOver))
      }

    /** Adds the bytes that a table gives back, as it does: of rows that are on the disk already, else of others that go there. */
    def ask(live: LiveTable, relieves: Boolean): Unit = {
      while (step(live)(live.forgetSomeAtRest())) ()
      if (relieves && gained.get <= 0 && step(live)(live.relieveAtRest()))
        while (step(live)(live.forgetSomeAtRest())) ()
    }

    private def step(live: LiveTable)(work: => Boolean): Boolean = live.isAtRest && live.synchronized {
      // who moves it, or works with it, has come first
      live.isAtRest && !live.isBusy && counted(live)(work)
    }

    private def counted(live: LiveTable)(work: => Boolean): Boolean = {
      works = true
      try {
        val before = live.table.memory.total
        val more = work
        gained.addAndGet(before - live.table.memory.total)
        more
      } finally {
        steps.incrementAndGet()
        works = false
      }
    }

    /**
     * Waits until memory comes, or for the end, or until nothing has happened for a while; whether memory came: to who begun the round
     * since its begin, which may have given some already.
     */
    def await(patienceMs: Long, isJoined: Boolean): Boolean = {
      val before = if (isJoined) gained.get else 0L
      var (seen, since) = (steps.get, System.nanoTime())
      def isPatient = {
        if (works || steps.get != seen) {
          seen = steps.get
          since = System.nanoTime()
        }
        System.nanoTime() - since < TimeUnit.MILLISECONDS.toNanos(patienceMs)
      }
      while (gained.get <= before && isPatient && !done.await(LookMs, TimeUnit.MILLISECONDS)) ()
      gained.get > before
    }
  }

  private val LookMs = 2L

  private val PatienceMs = 2000L

  /** Runs work after what has been submitted. */
  private[lamina] def execute(work: Runnable): Unit = executor.execute(work)
}
