package org.apache.spark.sql.lamina

import org.apache.spark.sql.execution.streaming.state.StateStoreRDDSuite
import org.apache.spark.sql.internal.SQLConf

/**
 * Spark's suite of the RDD that opens stores. It makes sessions of its own, whose provider the build sets as a system
 * property, and names no attempts, so it runs on format v1 only. Each RDD is a run of its own to it: see [[OneRunProvider]].
 */
class LaminaStateStoreRDDSuite extends StateStoreRDDSuite with WithoutExcluded {
  override def beforeAll(): Unit = {
    super.beforeAll()
    assert(sys.props(SQLConf.STATE_STORE_PROVIDER_CLASS.key) == classOf[OneRunProvider].getName)
  }
}
