package org.apache.spark.sql.lamina

import java.lang.reflect.InvocationTargetException
import java.util

import org.apache.spark.sql.catalyst.plans.logical.{LogicalPlan, UnresolvedDataSource}
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.connector.catalog.Table
import org.apache.spark.sql.connector.expressions.Transform
import org.apache.spark.sql.execution.datasources.v2.state._
import org.apache.spark.sql.execution.streaming.state.{NoPrefixKeyStateEncoderSpec, StateStoreConf}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.StructType

/**
 * Spark's state data source for its offline repartition, which reads all column families of a store at once and is refused
 * on any provider but RocksDB's, by the name of the class, after a batch for it was begun. Here it reads lamina's, too.
 */
final class LaminaStateDataSource extends StateDataSource {

  override def getTable(
      schema: StructType,
      partitioning: Array[Transform],
      properties: util.Map[String, String]
  ): Table = {
    val session = SparkSession.active
    val options = LaminaStateDataSource.resolved(session, properties)
    val conf = own[SQLConf]("buildSqlConfForBatch", options.resolvedCpLocation, Long.box(options.batchId))
    if (!LaminaExtensions.isChosen(conf)) super.getTable(schema, partitioning, properties)
    else {
      val info = own[StateStoreReaderInfo]("getStoreMetadataAndRunChecks", options)
      new StateTable(
        session,
        schema,
        options,
        StateStoreConf(conf),
        conf.getConf(SQLConf.STATEFUL_SHUFFLE_PARTITIONS_INTERNAL).get,
        info.keyStateEncoderSpecOpt.getOrElse(
          NoPrefixKeyStateEncoderSpec(schema("key").dataType.asInstanceOf[StructType])
        ),
        info.transformWithStateVariableInfoOpt,
        info.stateStoreColFamilySchemaOpt,
        info.stateSchemaProviderOpt,
        info.joinColFamilyOpt,
        info.allColumnFamiliesReaderInfo,
        info.joinStateFormatVersion
      )
    }
  }

  /** Calls a private method of Spark's class. */
  private def own[T](name: String, arguments: AnyRef*): T =
    LaminaStateDataSource.call(classOf[StateDataSource], this, name, arguments: _*)
}

private object LaminaStateDataSource {

  /** Reads for the repartition go through [[LaminaStateDataSource]]. Before Spark looks sources up. */
  val Reads: Rule[LogicalPlan] = new Rule[LogicalPlan] {
    override def apply(plan: LogicalPlan): LogicalPlan = plan.resolveOperators {
      case read: UnresolvedDataSource if read.format == "statestore" && readsAllFamilies(read) =>
        read.copy(format = classOf[LaminaStateDataSource].getName)
    }
  }

  private def readsAllFamilies(read: UnresolvedDataSource): Boolean =
    read.options.get(StateSourceOptions.INTERNAL_ONLY_READ_ALL_COLUMN_FAMILIES).exists(_.equalsIgnoreCase("true"))

  private def resolved(session: SparkSession, properties: util.Map[String, String]): StateSourceOptions = {
    val hadoop = session.sessionState.newHadoopConf()
    val options = StateSourceOptions(session, hadoop, properties)
    call(StateSourceOptions.getClass, StateSourceOptions, "modifySourceOptions", hadoop, options)
  }

  private def call[T](of: Class[_], on: AnyRef, name: String, arguments: AnyRef*): T = {
    val method =
      of.getDeclaredMethods.find(method => method.getName == name && method.getParameterCount == arguments.size)
        .getOrElse(throw new NoSuchMethodException(s"$name of ${of.getName}"))
    method.setAccessible(true)
    try method.invoke(on, arguments: _*).asInstanceOf[T]
    catch { case failed: InvocationTargetException => throw failed.getCause }
  }
}
