package org.apache.spark.sql.lamina

import java.util.concurrent.{CountDownLatch, LinkedBlockingQueue, ThreadPoolExecutor, TimeUnit}
import java.util.concurrent.atomic.AtomicLong
import java.util.concurrent.locks.LockSupport

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
   * it. Another thread does it, since the caller may hold the lock of a table, and it is not waited for long: others who hold one may
   * wait like the caller.
   */
  def makeRoom(registry: TableRegistry, pool: PagePool, relieves: Boolean = true): Boolean = {
    val tables = registry.layeredAtRest(pool)
    tables.nonEmpty && {
      val gained = new AtomicLong()
      val done = new CountDownLatch(tables.size)
      // one by one: who waits for one table holds up no other caller
      tables.foreach { table =>
        room.execute { () =>
          try forgetAll(table, gained, relieves)
          catch {
            case error: Exception => logWarning("Rows of a table could not be forgotten; they are not affected", error)
          } finally done.countDown()
        }
      }
      done.await(RoomMs, TimeUnit.MILLISECONDS)
      gained.get > 0
    }
  }

  /** Adds the bytes that a table at rest gives back, as it does: of rows that are on the disk already, else of others that go there. */
  private def forgetAll(live: LiveTable, gained: AtomicLong, relieves: Boolean): Unit = {
    def step(work: => Boolean): Boolean = live.isAtRest && live.synchronized {
      val before = live.table.memory.total
      val more = work
      gained.addAndGet(before - live.table.memory.total)
      more
    }
    while (step(live.forgetSomeAtRest())) ()
    if (relieves && gained.get <= 0 && step(live.relieveAtRest())) while (step(live.forgetSomeAtRest())) ()
  }

  private val RoomMs = 2000L

  /** Runs work after what has been submitted. */
  private[lamina] def execute(work: Runnable): Unit = executor.execute(work)
}
