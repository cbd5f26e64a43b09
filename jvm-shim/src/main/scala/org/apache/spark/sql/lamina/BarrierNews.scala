package org.apache.spark.sql.lamina

import scala.util.control.NonFatal

import org.apache.spark.{SparkContext, SparkEnv}
import org.apache.spark.internal.Logging
import org.apache.spark.rpc.{RpcEndpointRef, RpcEnv, ThreadSafeRpcEndpoint}
import org.apache.spark.scheduler.{SparkListener, SparkListenerExecutorRemoved}
import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.wire.DaemonThreads
import org.apache.spark.util.RpcUtils

/**
 * What executors tell the driver of log objects for which batches wait: who writes one, that it is there, and that one will not
 * be there. So the driver looks when it is worth it, and a batch fails soon after an executor, an engine or an upload was lost,
 * and not when its time is over.
 *
 * Nothing is taken for durable by news: that is seen by looking. News that do not arrive cost time, of a look or of the barrier.
 */
private[lamina] object BarrierNews extends Logging {
  private val Name = "lamina-log-objects"
  private val (begins, writes, fails) = ("begins", "writes", "fails")

  private lazy val sender = DaemonThreads.pool("lamina-barrier-news", 1)
  private val sent = new Recent[(String, String), Boolean]
  private var listening: SparkEnv = _
  private var found: Option[(SparkEnv, RpcEndpointRef)] = None

  /** Hears what executors tell, from now on; on the driver, before the first task of a query. */
  def listen(): Unit =
    try SparkContext.getActive.filterNot(_.isLocal).foreach(listen)
    catch { case NonFatal(error) => logWarning("the driver does not hear of lost log objects", error) }

  private def listen(context: SparkContext): Unit = synchronized {
    if (listening ne context.env) {
      // once, also where it fails
      listening = context.env
      val writers = new Writers(DurableLogs.tell)
      context.env.rpcEnv.setupEndpoint(Name, new Endpoint(context.env.rpcEnv, writers))
      context.addSparkListener(new SparkListener {
        override def onExecutorRemoved(removed: SparkListenerExecutorRemoved): Unit =
          writers.lost(removed.executorId, removed.reason)
      })
    }
  }

  /** This executor is about to write an object. */
  def begun(log: String): Unit = send(begins, log, "", "")

  /** This executor has written an object. */
  def written(log: String): Unit = send(writes, log, "", "")

  /** An object that this executor was to write will not be there. */
  def failed(log: String, error: Throwable): Unit = {
    val (kind, text) = LaminaError.kindAndText(error)
    send(fails, log, kind, text)
  }

  /** Texts alone: classes of a library are not known wherever messages are read. */
  private def send(what: String, log: String, kind: String, text: String): Unit = {
    val env = SparkEnv.get
    if (env != null && env.executorId != SparkContext.DRIVER_IDENTIFIER && isNew(what, log))
      sender.execute { () =>
        try driver(env).send(Seq(what, log, env.executorId, kind, text))
        catch {
          case NonFatal(error) => logInfo(s"the driver was not told that executor ${env.executorId} $what $log", error)
        }
      }
  }

  private def isNew(what: String, log: String): Boolean = synchronized(sent.put((what, log), true).isEmpty)

  private def driver(env: SparkEnv): RpcEndpointRef = found match {
    case Some((`env`, known)) => known
    case _ =>
      val made = RpcUtils.makeDriverRef(Name, env.conf, env.rpcEnv)
      found = Some((env, made))
      made
  }

  private final class Endpoint(override val rpcEnv: RpcEnv, writers: Writers) extends ThreadSafeRpcEndpoint {
    override def receive: PartialFunction[Any, Unit] = {
      case Seq(`begins`, log: String, executor: String, _, _) => writers.begun(log, executor)
      case Seq(`writes`, log: String, _, _, _) => DurableLogs.say(log)
      case Seq(`fails`, log: String, executor: String, kind: String, text: String) =>
        writers.failed(log, new LaminaError(kind, s"executor $executor: $text"))
    }
  }
}

/** Spark has lost an executor, whose engine may go on for a moment. */
private[lamina] final class ExecutorLost(reason: String) extends Exception(reason)

/** Which executor writes which object, and which executors are lost; `tell` is told of each object that goes with one. */
private[lamina] final class Writers(tell: (String, Option[Throwable]) => Unit) {
  private val writers = new Recent[String, String]
  private val lost = new Recent[String, String]

  def begun(log: String, executor: String): Unit = {
    val reason = synchronized {
      writers.put(log, executor)
      lost.get(executor)
    }
    // its message may come after it
    reason.foreach(why => failed(log, gone(executor, why)))
  }

  def failed(log: String, error: LaminaError): Unit = tell(log, Some(error))

  def lost(executor: String, reason: String): Unit = {
    val logs = synchronized {
      lost.put(executor, reason)
      writers.keysOf(executor)
    }
    logs.foreach(failed(_, gone(executor, reason)))
  }

  private def gone(executor: String, reason: String): LaminaError =
    new LaminaError(
      LaminaError.EngineLost,
      s"executor $executor, which was to write it, was lost: $reason",
      new ExecutorLost(reason)
    )
}
