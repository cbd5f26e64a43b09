package org.apache.spark.sql.lamina

import org.apache.spark.SparkConf
import org.apache.spark.sql.execution.streaming.runtime.MemoryStream
import org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider
import org.apache.spark.sql.internal.{SQLConf, StaticSQLConf}
import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.streaming._

/** What `transformWithState` gives without the extension, and with it on another provider. */
abstract class LaminaExtensionsSuiteBase(extensions: String) extends StreamTest {
  import testImplicits._

  override protected def sparkConf: SparkConf = super.sparkConf
    .set(SQLConf.STATE_STORE_PROVIDER_CLASS.key, LaminaTests.Provider)
    .set(StaticSQLConf.SPARK_SESSION_EXTENSIONS.key, extensions)

  protected def failureOfTransformWithState(): Throwable = {
    val input = MemoryStream[String]
    val counted = input.toDS().groupByKey(identity)
      .transformWithState(new RunningCountStatefulProcessor(), TimeMode.None(), OutputMode.Update())
    val query = counted.writeStream.format("noop").outputMode("update").start()
    try {
      input.addData("a")
      Iterator.iterate(intercept[StreamingQueryException](query.processAllAvailable()): Throwable)(_.getCause)
        .takeWhile(_ != null).toSeq.last
    } finally query.stop()
  }
}

class LaminaExtensionMissingSuite extends LaminaExtensionsSuiteBase("") {
  test("without the extension the error says which setting to add") {
    failureOfTransformWithState() match {
      case error: LaminaError =>
        assert(error.kind == LaminaError.SettingsInvalid)
        assert(error.getMessage.contains("spark.sql.extensions=org.apache.spark.sql.lamina.LaminaExtensions"))
      case other => fail(other)
    }
  }

  test("without the extension a batch query runs, whose state Spark keeps elsewhere") {
    import testImplicits._
    val counted = Seq("a", "b", "a").toDS().groupByKey(identity)
      .transformWithState(new RunningCountStatefulProcessor(), TimeMode.None(), OutputMode.Update())
    assert(counted.collect().toSet == Set(("a", "1"), ("b", "1")))
  }

  test("without the extension other operators run") {
    import testImplicits._
    val input = MemoryStream[String]
    testStream(input.toDS().groupBy("value").count(), OutputMode.Update())(AddData(input, "a"), CheckAnswer(("a", 1)))
  }
}

class LaminaExtensionOnOtherProviderSuite extends LaminaExtensionsSuiteBase(classOf[LaminaExtensions].getName) {
  test("with the extension Spark's check of other providers stays") {
    withSQLConf(SQLConf.STATE_STORE_PROVIDER_CLASS.key -> classOf[HDFSBackedStateStoreProvider].getName) {
      assert(failureOfTransformWithState().getMessage.contains("HDFSBackedStateStoreProvider"))
    }
  }
}
