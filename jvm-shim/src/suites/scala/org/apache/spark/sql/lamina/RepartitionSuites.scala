package org.apache.spark.sql.lamina

import org.apache.spark.sql.execution.streaming.state._

// Spark's suites of the offline repartition of state, which set the checkpoint format themselves.

class LaminaRepartitionJoinSuite extends OfflineStateRepartitionJoinCkptV1IntegrationSuite with LaminaTests
class LaminaRepartitionTransformWithStateV2Suite
    extends OfflineStateRepartitionTransformWithStateCkptV2IntegrationSuite
    with LaminaTests
