package org.apache.spark.sql.lamina

import org.apache.spark.SparkConf
import org.apache.spark.sql.QueryTest
import org.apache.spark.sql.internal.{SQLConf, StaticSQLConf}
import org.apache.spark.sql.test.SharedSparkSession

/**
 * Runs a suite of Spark's on lamina: the session has lamina's provider and extension, a provider that a test sets by
 * name is replaced, and the tests of [[Exclusions]] are ignored. Mixed in last. The mode is what the environment has as
 * LAMINA_MODE; what it needs of format v2 is left out elsewhere.
 */
trait LaminaTests extends SharedSparkSession with WithoutExcluded { self: QueryTest =>

  override protected def sparkConf: SparkConf = super.sparkConf
    .set(SQLConf.STATE_STORE_PROVIDER_CLASS.key, LaminaTests.Provider)
    .set(StaticSQLConf.SPARK_SESSION_EXTENSIONS.key, classOf[LaminaExtensions].getName)
    .setAll(LaminaTests.backend(LaminaTests.Mode.stripSuffix(LaminaTests.Changelog)))
    // Whoever stops the stores holds a lock that a maintenance thread may need to end, and waits this long for it.
    .set(SQLConf.STATE_STORE_MAINTENANCE_SHUTDOWN_TIMEOUT.key, "5")

  override protected def withSQLConf[T](pairs: (String, String)*)(f: => T): T =
    super.withSQLConf(pairs.map(LaminaTests.onLamina): _*)(f)
}

/** The same on checkpoints of format v2. */
trait LaminaTestsV2 extends LaminaTests { self: QueryTest =>
  override protected def sparkConf: SparkConf =
    super.sparkConf.set(SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION.key, "2")
      .setAll(if (LaminaTests.Mode.endsWith(LaminaTests.Changelog)) LaminaTests.behindBarrier else Nil)
}

object LaminaTests {
  val Provider: String = classOf[LaminaStateStoreProvider].getName

  /** Settings of a backend, with which tests see it after a few batches. */
  def backend(name: String): Map[String, String] =
    Map("backend" -> name).concat(if (name == "rocksdb") Some("rocksdb.materializeEvery" -> "2") else None)
      .map { case (key, value) => StoreSettings.Prefix + key -> value }

  val Mode = sys.env.getOrElse("LAMINA_MODE", "heap")
  val Changelog = "-changelog"

  /** Commits go into log objects, for which batches wait. */
  def behindBarrier: Map[String, String] = Map(
    StoreSettings.Prefix + "changelog.enabled" -> "true",
    StoreSettings.Prefix + "durability.level" -> "executor",
    "spark.sql.streaming.checkpointFileManagerClass" -> classOf[LaminaCheckpointFileManager].getName
  )

  /** A setting of a test with Spark's providers replaced. */
  def onLamina(setting: (String, String)): (String, String) =
    if (setting._1 == SQLConf.STATE_STORE_PROVIDER_CLASS.key && setting._2.startsWith(SparkProviders)) {
      setting._1 -> (if (setting._2.endsWith(SkipsMaintenance)) classOf[SilentPartitionsProvider].getName else Provider)
    } else setting

  private val SkipsMaintenance = "SkipMaintenanceOnCertainPartitionsProvider"
  private val SparkProviders = "org.apache.spark.sql.execution.streaming.state."
}
