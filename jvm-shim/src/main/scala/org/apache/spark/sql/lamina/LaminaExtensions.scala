package org.apache.spark.sql.lamina

import org.apache.spark.SPARK_VERSION
import org.apache.spark.sql.SparkSessionExtensions
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan}
import org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkExec
import org.apache.spark.sql.internal.{SQLConf, StaticSQLConf}
import org.apache.spark.sql.lamina.errors.LaminaError

/**
 * Lets `transformWithState` and the offline repartition of state run on lamina: Spark refuses both on any provider but
 * RocksDB's, by the name of the class. Set as `spark.sql.extensions`.
 *
 * The operators are replaced right before they run, since the rule that gives an operator its state copies it.
 */
class LaminaExtensions private[lamina] (sparkVersion: String) extends (SparkSessionExtensions => Unit) {

  /** As Spark makes it. */
  def this() = this(SPARK_VERSION)

  override def apply(extensions: SparkSessionExtensions): Unit = {
    // First of all: with the jar of another minor the rules fail in ways that tell nothing.
    SupportedSpark.require(sparkVersion)
    extensions.injectColumnar(_ => AcceptProvider)
    extensions.injectHintResolutionRule(_ => LaminaStateDataSource.Reads)
  }
}

object LaminaExtensions {

  /** Whether the session's provider is lamina's. */
  private[lamina] def isChosen(conf: SQLConf): Boolean =
    conf.stateStoreProviderClass == classOf[LaminaStateStoreProvider].getName

  /**
   * Fails where Spark is about to refuse `transformWithState` because the session is without the extension. Spark's own
   * message would only name the other provider. To be asked while an operator on the driver makes its metrics, which it
   * does before it checks.
   */
  private[lamina] def requireForTransformWithState(): Unit =
    if (isCalledByTransformWithState && SparkSession.getActiveSession.exists(isStreamingWithoutExtension)) {
      throw new LaminaError(
        LaminaError.SettingsInvalid,
        s"transformWithState runs on lamina only with ${StaticSQLConf.SPARK_SESSION_EXTENSIONS.key}=" +
          s"${classOf[LaminaExtensions].getName}; set it before the session is made"
      )
    }

  private def isStreamingWithoutExtension(session: SparkSession): Boolean =
    session.sparkContext.getLocalProperty(Compat.queryIdKey) != null &&
      !session.sessionState.columnarRules.contains(AcceptProvider)

  private def isCalledByTransformWithState: Boolean = {
    val operator = classOf[Compat.TransformWithStateBase].getName
    StackWalker.getInstance().walk[Boolean](frames => frames.limit(SearchedFrames).anyMatch(_.getClassName == operator))
  }

  private val SearchedFrames = 32L
}

/** Replaces the operators of `transformWithState` by those that accept lamina. */
private object AcceptProvider extends ColumnarRule {
  override val preColumnarTransitions: Rule[SparkPlan] = new Rule[SparkPlan] {
    override def apply(plan: SparkPlan): SparkPlan = replace(plan)
  }

  private def replace(plan: SparkPlan): SparkPlan = plan.transformUp {
    case node: Compat.TransformWithState if !node.isInstanceOf[AcceptsLamina] => new LaminaTransformWithState(node)
    case node: TransformWithStateInPySparkExec if !node.isInstanceOf[AcceptsLamina] =>
      new LaminaTransformWithStateInPySpark(node)
  }
}

/** An operator that accepts lamina, besides what it accepts in Spark. */
private[lamina] trait AcceptsLamina extends Compat.TransformWithStateBase {
  override protected def validateStateStoreProvider(isStreaming: Boolean): Unit =
    if (!LaminaExtensions.isChosen(conf)) super.validateStateStoreProvider(isStreaming)

  // It must not be equal to the operator that it replaces, or the replacement is dropped.

  override def canEqual(other: Any): Boolean = other.isInstanceOf[AcceptsLamina]

  override def equals(other: Any): Boolean = other.isInstanceOf[AcceptsLamina] && super.equals(other)

  override def hashCode(): Int = super.hashCode()
}

/** The operator of Python on both minors, with pandas and with rows. */
private[lamina] final class LaminaTransformWithStateInPySpark(node: TransformWithStateInPySparkExec)
    extends TransformWithStateInPySparkExec(
      node.functionExpr,
      node.groupingAttributes,
      node.output,
      node.outputMode,
      node.timeMode,
      node.stateInfo,
      node.batchTimestampMs,
      node.prevBatchTimestampMs,
      node.eventTimeWatermarkForLateEvents,
      node.eventTimeWatermarkForEviction,
      node.userFacingDataType,
      node.child,
      node.isStreaming,
      node.hasInitialState,
      node.initialState,
      node.initialStateGroupingAttrs,
      node.initialStateSchema
    )
    with AcceptsLamina {

  override def makeCopy(arguments: Array[AnyRef]): SparkPlan =
    new LaminaTransformWithStateInPySpark(copy().makeCopy(arguments).asInstanceOf[TransformWithStateInPySparkExec])

  override protected def withNewChildrenInternal(
      child: SparkPlan,
      initialState: SparkPlan
  ): TransformWithStateInPySparkExec =
    new LaminaTransformWithStateInPySpark(copy(child = child, initialState = initialState))
}
