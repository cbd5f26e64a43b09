package org.apache.spark.sql.lamina

import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.TransformWithStateExec

/** The operator of Scala as Spark 4.2 has it. */
private[lamina] final class LaminaTransformWithState(node: TransformWithStateExec)
    extends TransformWithStateExec(
      node.keyDeserializer,
      node.valueDeserializer,
      node.groupingAttributes,
      node.dataAttributes,
      node.statefulProcessor,
      node.timeMode,
      node.outputMode,
      node.keyEncoder,
      node.outputObjAttr,
      node.stateInfo,
      node.batchTimestampMs,
      node.prevBatchTimestampMs,
      node.eventTimeWatermarkForLateEvents,
      node.eventTimeWatermarkForEviction,
      node.child,
      node.isStreaming,
      node.hasInitialState,
      node.initialStateGroupingAttrs,
      node.initialStateDataAttrs,
      node.initialStateDeserializer,
      node.initialState
    )
    with AcceptsLamina {

  override def makeCopy(arguments: Array[AnyRef]): SparkPlan =
    new LaminaTransformWithState(copy().makeCopy(arguments).asInstanceOf[TransformWithStateExec])

  override protected def withNewChildrenInternal(child: SparkPlan, initialState: SparkPlan): TransformWithStateExec =
    new LaminaTransformWithState(copy(child = child, initialState = initialState))
}
