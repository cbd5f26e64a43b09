package org.apache.spark.sql.lamina

import java.nio.file.{Files, Path}

import scala.jdk.CollectionConverters._

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.security.alias.CredentialProviderFactory
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.lamina.errors.LaminaError

/** Which keys of the Hadoop configuration the engine gets. */
class StorageKeysSuite extends AnyFunSuite {
  private val url = "s3a://bucket/query/state"
  private val providers = CredentialProviderFactory.CREDENTIAL_PROVIDER_PATH

  test("keys of access to storage are passed on, and no others") {
    val access = Map(
      "fs.s3a.endpoint" -> "http://localhost:9000",
      "fs.s3a.bucket.bucket.access.key" -> "own",
      "fs.azure.account.key.account.dfs.core.windows.net" -> "k",
      "fs.gs.project.id" -> "p",
      "google.cloud.auth.service.account.json.keyfile" -> "/key.json",
      "dfs.nameservices" -> "cluster"
    )
    val keys = StoreSettings.storageKeys(configuration(access + ("mapreduce.job.name" -> "other")), url)
    assert(keys.view.filterKeys(_ != "fs.defaultFS").toMap == access)
    assert(keys("fs.defaultFS") == "file:///")
  }

  test("what is in a credential provider goes before what is in the configuration") {
    val file = keystore(
      "fs.s3a.secret.key" -> "from the provider",
      "fs.s3a.bucket.bucket.session.token" -> "token",
      "ssl.server.keystore.password" -> "not for storage"
    )
    val conf = configuration(Map("fs.s3a.access.key" -> "id", "fs.s3a.secret.key" -> "in clear", providers -> file))
    val keys = StoreSettings.storageKeys(conf, url)
    assert(keys("fs.s3a.access.key") == "id")
    assert(keys("fs.s3a.secret.key") == "from the provider")
    assert(keys("fs.s3a.bucket.bucket.session.token") == "token")
    assert(!keys.contains("ssl.server.keystore.password"))
  }

  test("a secret of Azure is taken from a credential provider") {
    val account = "account.dfs.core.windows.net"
    val conf = configuration(Map(providers -> keystore(s"fs.azure.account.key.$account" -> "k")))
    assert(StoreSettings.storageKeys(conf, s"abfss://c@$account/query")(s"fs.azure.account.key.$account") == "k")
  }

  test("a credential provider of S3A is none of Azure's") {
    val account = "account.dfs.core.windows.net"
    val conf = configuration(Map("fs.s3a.security.credential.provider.path" -> keystore("fs.s3a.secret.key" -> "s")))
    assert(!StoreSettings.storageKeys(conf, s"abfss://c@$account/query").contains("fs.s3a.secret.key"))
    assert(StoreSettings.storageKeys(conf, url)("fs.s3a.secret.key") == "s")
  }

  test("of several credential providers a bucket's own goes first, then S3A's, then the general one") {
    def of(owner: String): String = keystore("fs.s3a.secret.key" -> owner)
    val general = Map(providers -> of("general"))
    val s3 = general + ("fs.s3a.security.credential.provider.path" -> of("s3a"))
    val own = s3 + ("fs.s3a.bucket.bucket.security.credential.provider.path" -> of("bucket"))
    Seq(general -> "general", s3 -> "s3a", own -> "bucket").foreach { case (keys, owner) =>
      assert(StoreSettings.storageKeys(configuration(keys), url)("fs.s3a.secret.key") == owner)
    }
    val two = configuration(Map(providers -> s"${of("first")},${of("second")}"))
    assert(StoreSettings.storageKeys(two, url)("fs.s3a.secret.key") == "first")
  }

  test("another bucket's credential providers are asked, too, and hold for that one alone") {
    val providerOf = "fs.s3a.bucket.%s.security.credential.provider.path".format(_: String)
    val keys = Map(
      providerOf("bucket") -> keystore("fs.s3a.secret.key" -> "own"),
      providerOf("fast") -> keystore(
        "fs.s3a.secret.key" -> "of the other",
        "fs.s3a.bucket.fast.session.token" -> "token",
        "fs.s3a.access.key" -> "not the bucket's own"
      ),
      "fs.s3a.bucket.fast.access.key" -> "id"
    )
    val prefix = StoreSettings.Prefix
    val settings = Map(
      s"${prefix}changelog.path" -> "s3a://fast/log",
      s"${prefix}storage.roots" -> "none"
    )
    val (conf, others) = (configuration(keys), StoreSettings.elsewhere(settings))
    assert(others == Seq("s3a://fast/log"))
    Seq(url -> Some("own"), "hdfs://host/query" -> None).foreach { case (checkpoint, own) =>
      val found = StoreSettings.storageKeys(conf, checkpoint, others)
      assert(found.get("fs.s3a.secret.key") == own)
      assert(found("fs.s3a.bucket.fast.secret.key") == "of the other")
      assert(found("fs.s3a.bucket.fast.session.token") == "token")
      assert(found("fs.s3a.bucket.fast.access.key") == "id")
    }
    assert(!StoreSettings.storageKeys(conf, url).contains("fs.s3a.bucket.fast.secret.key"))
    // the engine refuses it by name
    assert(StoreSettings.storageKeys(conf, url, Seq("s3a://", ":"))("fs.s3a.secret.key") == "own")
  }

  test("a path without scheme is on the default file system, whose secrets it takes") {
    val conf = configuration(Map("fs.defaultFS" -> "s3a://bucket", providers -> keystore("fs.s3a.secret.key" -> "s")))
    assert(StoreSettings.storageKeys(conf, "/query/state")("fs.s3a.secret.key") == "s")
  }

  test("a credential provider that cannot be read is an error only where its secrets are needed") {
    val file = Files.createTempFile("lamina", ".jceks")
    Files.writeString(file, "no keystore")
    val conf = configuration(Map(providers -> s"localjceks://file$file"))
    val error = intercept[LaminaError](StoreSettings.storageKeys(conf, url))
    assert(error.kind == LaminaError.StorageDenied && error.getMessage.contains(file.toString))
    Seq("file:/tmp/query", "/tmp/query", "hdfs://host/query").foreach(StoreSettings.storageKeys(conf, _))
  }

  private def configuration(keys: Map[String, String]): Configuration = {
    val conf = new Configuration
    keys.foreach { case (key, value) => conf.set(key, value) }
    conf
  }

  /** The path of a credential provider that holds `secrets`. */
  private def keystore(secrets: (String, String)*): String = {
    val directory: Path = Files.createTempDirectory("lamina-credentials")
    val path = s"localjceks://file$directory/secrets.jceks"
    val provider = CredentialProviderFactory.getProviders(configuration(Map(providers -> path))).asScala.head
    secrets.foreach { case (name, value) => provider.createCredentialEntry(name, value.toCharArray) }
    provider.flush()
    path
  }
}
