package org.apache.spark.sql.lamina.wire

import java.util.concurrent.{ExecutorService, LinkedBlockingQueue, ThreadFactory, ThreadPoolExecutor, TimeUnit}
import java.util.concurrent.atomic.AtomicLong

import org.apache.spark.internal.Logging

/**
 * Threads that never keep a JVM alive and carry a name that says whose they are.
 *
 * None ends by an exception: Spark's executors exit on one that leaves a thread. What a thread's work does not handle itself
 * is caught, logged and counted here, and so is what work throws that an executor, a timer or a future would swallow.
 */
private[lamina] object DaemonThreads extends Logging {
  private val count = new AtomicLong

  /** Exceptions that work of this JVM's threads did not handle. */
  def failures: Long = count.get

  def apply(name: String): ThreadFactory = (body: Runnable) => make(name, body)

  def start(name: String)(body: => Unit): Thread = {
    val thread = make(name, () => body)
    thread.start()
    thread
  }

  /** So many threads, which end when there is nothing to do; what comes while all are busy takes turns. */
  def pool(name: String, threads: Int): ExecutorService = {
    val pool =
      new ThreadPoolExecutor(threads, threads, 10, TimeUnit.SECONDS, new LinkedBlockingQueue[Runnable], apply(name))
    pool.allowCoreThreadTimeOut(true)
    pool
  }

  /** Runs work whose exceptions nobody would see. */
  def guarded(what: => String)(body: => Unit): Unit =
    try body
    catch {
      case error: Throwable =>
        count.incrementAndGet()
        if (error.isInstanceOf[InterruptedException]) Thread.currentThread.interrupt()
        logError(s"$what ended by an exception that it should have handled", error)
    }

  private def make(name: String, body: Runnable): Thread = {
    val thread = new Thread((() => guarded(s"Thread $name")(body.run())): Runnable, name)
    thread.setDaemon(true)
    // a thread made in a task would otherwise keep that query's class loader
    thread.setContextClassLoader(getClass.getClassLoader)
    thread
  }
}
