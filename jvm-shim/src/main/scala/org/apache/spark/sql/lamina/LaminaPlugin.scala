package org.apache.spark.sql.lamina

import java.util.{Map => JavaMap}

import scala.util.control.NonFatal

import org.apache.spark.SparkConf
import org.apache.spark.api.plugin.{DriverPlugin, ExecutorPlugin, PluginContext, SparkPlugin}
import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.state.StateStoreConf
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.lamina.wire.{DaemonThreads, Engine}

/**
 * Starts each executor's engine with the executor, so that the first store that opens does not wait for it. Set as
 * `spark.plugins`; without it everything is the same but for that wait.
 *
 * What goes wrong here is told by the first store, which starts the engine again.
 */
final class LaminaPlugin extends SparkPlugin {

  override def driverPlugin(): DriverPlugin = null

  override def executorPlugin(): ExecutorPlugin = new ExecutorPlugin with Logging {
    private var starting = Option.empty[Thread]

    override def init(context: PluginContext, extra: JavaMap[String, String]): Unit =
      if (LaminaPlugin.isChosen(context.conf)) {
        // it knows the jars of spark.jars, as the thread does not, and the engine's Hadoop file systems are found by it
        val classes = Thread.currentThread.getContextClassLoader
        starting = Some(DaemonThreads.start("lamina-engine-ahead") {
          Thread.currentThread.setContextClassLoader(classes)
          try Engine.startAhead(LaminaPlugin.settings(context.conf).process(context.conf))
          catch { case NonFatal(error) => logInfo("the engine is not there ahead of the first store", error) }
        })
      }

    override def shutdown(): Unit = {
      starting.foreach(_.interrupt())
      Engine.endAhead()
    }
  }
}

object LaminaPlugin {

  /** Whether the application's sessions keep their state in lamina unless they choose otherwise. */
  private[lamina] def isChosen(conf: SparkConf): Boolean =
    conf.getOption(SQLConf.STATE_STORE_PROVIDER_CLASS.key).contains(classOf[LaminaStateStoreProvider].getName)

  /** The settings that a session has when it begins. */
  private[lamina] def settings(conf: SparkConf): StoreSettings = {
    val session = new SQLConf
    for ((key, value) <- conf.getAll if key.startsWith(StoreSettings.Prefix)) session.setConfString(key, value)
    new StoreSettings(new StateStoreConf(session))
  }
}
