package org.apache.spark.sql.lamina

import java.io.{File, IOException}
import java.net.URI
import java.nio.file.Paths

import scala.jdk.CollectionConverters._
import scala.util.Try

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileSystem, Path}
import org.apache.hadoop.security.alias.CredentialProviderFactory

import org.apache.spark.{SparkConf, SparkEnv}
import org.apache.spark.api.python.PythonUtils
import org.apache.spark.sql.execution.streaming.state.StateStoreConf
import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.wire.ProcessSettings

/**
 * What the user set, as far as the shim needs it. The engine validates all settings and gives back the typed ones; only
 * those that are needed before it runs are read here.
 */
final class StoreSettings(storeConf: StateStoreConf) {
  import StoreSettings._

  /** Every key under the prefix, as the user wrote it. */
  val raw: Map[String, String] = (storeConf.sqlConfs ++ storeConf.extraOptions).filter(_._1.startsWith(Prefix))

  /** What the engine is told: also keys of other providers and platforms, for it says which of them have no effect. */
  val sent: Map[String, String] =
    raw ++ storeConf.sqlConfs.filter { case (key, _) => ForeignPrefixes.exists(key.startsWith(_)) }

  def get(name: String): Option[String] = raw.get(Prefix + name)

  def long(name: String, default: Long): Long = get(name).fold(default) { text =>
    Try(text.trim.toLong).getOrElse(
      throw new LaminaError(LaminaError.SettingsInvalid, s"$Prefix$name is '$text'; expected a whole number")
    )
  }

  /** A part of one, between 0.05 and 0.95. */
  def ratio(name: String, default: Double): Double = get(name).fold(default) { text =>
    Try(text.trim.toDouble).filter(ratio => ratio >= 0.05 && ratio <= 0.95).getOrElse(
      throw new LaminaError(
        LaminaError.SettingsInvalid,
        s"$Prefix$name is '$text'; expected a number from 0.05 to 0.95"
      )
    )
  }

  /** Whether tables stand on tables of RocksDB. */
  def isLayered: Boolean = StoreSettings.isLayered(raw)

  /** Settings of the engine's process, which all queries of this JVM share. */
  def process(conf: SparkConf): ProcessSettings = ProcessSettings(
    python = python(conf),
    pythonPath = pythonPath,
    startTimeoutMs = long("engine.startTimeoutMs", 60000L),
    requestTimeoutMs = long("engine.requestTimeoutMs", 600000L),
    connections = long("engine.connections", 64L).toInt,
    tempDir = System.getProperty("java.io.tmpdir"),
    raw = raw.filter { case (key, _) => isProcessWide(key.stripPrefix(Prefix)) }
  )

  private def python(conf: SparkConf): String =
    get("engine.python").filterNot(_.equalsIgnoreCase("auto"))
      .orElse(conf.getOption("spark.pyspark.python"))
      .orElse(sys.env.get("PYSPARK_PYTHON").filter(_.nonEmpty))
      .getOrElse("python3")
}

object StoreSettings {
  val Prefix = "spark.sql.streaming.stateStore.lamina."

  private val ForeignPrefixes = Seq("spark.sql.streaming.stateStore.", "spark.databricks.")

  private val StoragePrefixes = Seq("fs.", "dfs.", "google.cloud.")

  /** Schemes of storages to which the engine gets secrets from these keys. */
  private val OfS3 = Set("s3", "s3a", "s3n")
  private val WithSecrets = OfS3 ++ Set("abfs", "abfss", "wasb", "wasbs")

  private val ProviderPath = "security.credential.provider.path"

  /** Settings that the first store of a JVM fixes. */
  def isProcessWide(name: String): Boolean =
    ProcessWide.exists(name.startsWith(_)) || name == "heap.maxBytes"

  private val ProcessWide = Seq("engine.", "storage.cache.", "rocksdb.memory.")

  /** Whether tables of a store with these settings, by full key, stand on tables of RocksDB. */
  def isLayered(settings: Map[String, String]): Boolean =
    settings.get(Prefix + "backend").exists(_.trim == "rocksdb")

  /** Spark's configuration, also where no Spark context runs. */
  def sparkConf: SparkConf = Option(SparkEnv.get).map(_.conf).getOrElse(new SparkConf(loadDefaults = false))

  /** The shim's own jar first, which carries the engine; then what Spark gives its workers, which has py4j. */
  private lazy val pythonPath: Seq[String] = {
    val jar =
      Option(getClass.getProtectionDomain.getCodeSource).map(source => Paths.get(source.getLocation.toURI).toString)
    val spark = Try(PythonUtils.sparkPythonPath).getOrElse("").split(File.pathSeparator).filter(_.endsWith(".zip"))
    (jar.toSeq ++ spark).filter(path => new File(path).exists)
  }

  /**
   * Keys of the Hadoop configuration that say how to reach `url` and others: those that differ from Hadoop's own defaults. For a
   * storage that has secrets among them, what Hadoop's credential providers hold goes before, as in Hadoop's clients; of another
   * bucket under the names that hold for that one alone.
   *
   * @throws LaminaError `storage.denied` where a credential provider cannot be read
   */
  def storageKeys(conf: Configuration, url: String, others: Seq[String] = Nil): Map[String, String] = {
    def isSet(key: String): Boolean = Option(conf.getPropertySources(key)).exists(_.exists(!_.endsWith("-default.xml")))
    val keys = conf.iterator.asScala.map(_.getKey)
      .filter(isStorageKey)
      .filter(key => key == "fs.defaultFS" || isSet(key))
      .map(key => key -> conf.get(key))
      .toMap
    val own = locationOf(conf, url)
    // what is no path is refused by name when the store opens
    val beside = others.flatMap(text => Try(locationOf(conf, text)).toOption)
      .filter(one => one.getAuthority != null && (one.getScheme, one.getAuthority) != (own.getScheme, own.getAuthority))
    val (ofAll, ofOne) = beside.flatMap(one => secrets(conf, one).toSeq.map(one -> _)).partition {
      case (one, (key, _)) =>
        OfS3(one.getScheme) && key.startsWith(S3Prefix) && !key.startsWith(BucketPrefix)
    }
    val named = ofAll.map { case (one, (key, secret)) =>
      s"$BucketPrefix${one.getAuthority}.${key.stripPrefix(S3Prefix)}" -> secret
    }
    named.toMap ++ keys ++ ofOne.map(_._2) ++ secrets(conf, own)
  }

  /** Where state may lie besides the checkpoint, by a store's settings. */
  def elsewhere(settings: Map[String, String]): Seq[String] =
    Seq("changelog.path", "storage.roots").flatMap(name => directories(settings.get(Prefix + name))).distinct

  /** The directories that a setting names; `none` is none. */
  def directories(setting: Option[String]): Seq[String] =
    setting.toSeq.flatMap(_.split(',')).map(_.trim).filterNot(text => text.isEmpty || text.equalsIgnoreCase("none"))

  private val S3Prefix = "fs.s3a."
  private val BucketPrefix = S3Prefix + "bucket."

  private def locationOf(conf: Configuration, url: String): URI = {
    val uri = new Path(url).toUri
    if (uri.getScheme == null) FileSystem.getDefaultUri(conf) else uri
  }

  private def isStorageKey(key: String): Boolean = StoragePrefixes.exists(key.startsWith(_))

  /** What the credential providers of a storage hold under names of storage keys; of several the first one counts. */
  private def secrets(conf: Configuration, location: URI): Map[String, String] =
    if (WithSecrets(location.getScheme)) provided(conf, location) else Map.empty

  private def provided(conf: Configuration, location: URI): Map[String, String] = {
    val authority = location.getAuthority
    val ofS3 =
      if (!OfS3(location.getScheme)) None
      else
        Seq(s"fs.s3a.bucket.$authority.$ProviderPath", s"fs.s3a.$ProviderPath")
          .flatMap(key => Option(conf.get(key))).headOption
    val paths = (ofS3.toSeq ++ Option(conf.get(s"hadoop.$ProviderPath"))).filter(_.nonEmpty).mkString(",")
    if (paths.isEmpty) Map.empty
    else
      try {
        val own = new Configuration(conf)
        own.set(CredentialProviderFactory.CREDENTIAL_PROVIDER_PATH, paths)
        CredentialProviderFactory.getProviders(own).asScala.reverse.flatMap { provider =>
          provider.getAliases.asScala.filter(isStorageKey)
            .flatMap(alias => Option(provider.getCredentialEntry(alias)))
            .map(entry => entry.getAlias -> new String(entry.getCredential))
        }.toMap
      } catch {
        case error: IOException =>
          val text = s"the credentials for $authority could not be read from $paths: ${error.getMessage}"
          throw new LaminaError(LaminaError.StorageDenied, text, error)
      }
  }
}
