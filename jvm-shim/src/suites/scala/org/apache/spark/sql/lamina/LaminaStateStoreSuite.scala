package org.apache.spark.sql.lamina

import java.util.UUID

import scala.collection.mutable
import scala.util.{Random, Try}

import org.apache.hadoop.conf.Configuration
import org.scalatest.concurrent.Eventually.{eventually, timeout}
import org.scalatest.time.SpanSugar._

import org.apache.spark.{SparkContext, SparkException}
import org.apache.spark.LocalSparkContext.withSpark
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.execution.streaming.state.StateStoreCoordinatorSuite.withCoordinatorRef
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.StructType

/**
 * The contract that Spark's own providers are held to: both checkpoint formats, row checksums, all compaction modes, both
 * backends, commits in log objects.
 */
abstract class LaminaStateStoreSuiteBase(
    format: Int,
    rowChecksums: Boolean = false,
    compaction: String = "background",
    backend: String = "heap",
    changelog: Boolean = false
) extends StateStoreSuiteBase[LaminaStateStoreProvider]
    with WithoutExcluded {
  import StateStoreTestsHelper._

  override def newStoreProvider(): LaminaStateStoreProvider = newStoreProvider(newId())

  override def newStoreProvider(storeId: StateStoreId): LaminaStateStoreProvider = create(storeId)

  override def newStoreProvider(storeId: StateStoreId, useColumnFamilies: Boolean): LaminaStateStoreProvider =
    create(storeId, useColumnFamilies = useColumnFamilies)

  override def newStoreProvider(storeId: StateStoreId, conf: Configuration): LaminaStateStoreProvider =
    create(storeId, hadoop = conf)

  override def newStoreProvider(minDeltasForSnapshot: Int, numOfVersToRetainInMemory: Int): LaminaStateStoreProvider =
    create(newId(), conf = getDefaultSQLConf(minDeltasForSnapshot, numOfVersToRetainInMemory))

  override def newStoreProvider(
      keySchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useColumnFamilies: Boolean
  ): LaminaStateStoreProvider = create(newId(), useColumnFamilies, keySchema, keyStateEncoderSpec)

  override def newStoreProvider(useColumnFamilies: Boolean): LaminaStateStoreProvider =
    create(newId(), useColumnFamilies = useColumnFamilies)

  override def newStoreProviderWithClonedConf(storeId: StateStoreId): LaminaStateStoreProvider = create(storeId)

  override def newStoreProviderNoInit(): LaminaStateStoreProvider = new LaminaStateStoreProvider

  override def getLatestData(
      provider: LaminaStateStoreProvider,
      useColumnFamilies: Boolean
  ): Set[((String, Int), Int)] =
    getData(provider, -1, useColumnFamilies)

  override def getData(
      provider: LaminaStateStoreProvider,
      version: Int,
      useColumnFamilies: Boolean
  ): Set[((String, Int), Int)] = {
    val id = provider.stateStoreId
    tryWithProviderResource(newStoreProvider(id, useColumnFamilies)) { reader =>
      val store = reader.getStore(if (version < 0) latestVersion(reader) else version.toLong)
      try store.iterator().map(rowPairToDataPair).toSet
      finally store.abort()
    }
  }

  override def getDefaultSQLConf(minDeltasForSnapshot: Int, numOfVersToRetainInMemory: Int): SQLConf = {
    val conf = SQLConf.get.clone()
    conf.setConf(SQLConf.STATE_STORE_PROVIDER_CLASS, classOf[LaminaStateStoreProvider].getName)
    conf.setConf(SQLConf.STATE_STORE_MIN_DELTAS_FOR_SNAPSHOT, minDeltasForSnapshot)
    conf.setConf(SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION, format)
    conf.setConf(SQLConf.STATE_STORE_ROW_CHECKSUM_ENABLED, rowChecksums)
    conf.setConfString(StoreSettings.Prefix + "compaction.mode", compaction)
    LaminaTests.backend(backend).foreach { case (key, value) => conf.setConfString(key, value) }
    conf.setConfString(StoreSettings.Prefix + "changelog.enabled", changelog.toString)
    conf
  }

  override def getDefaultStoreConf(): StateStoreConf = new StateStoreConf(getDefaultSQLConf(10, 2))

  // Spark's codecs compress the files of its own providers only.
  override def testWithAllCodec(name: String)(body: Boolean => Any): Unit =
    Seq(true, false).foreach(families => test(s"$name - colFamiliesEnabled=$families")(body(families)))

  override protected def afterEach(): Unit = {
    // The test of Spark that does this is one of the excluded.
    StateStore.stop()
    super.afterEach()
  }

  test(
    "a provider that Spark loads: a missing version is refused, older versions open again, unload forgets the provider"
  ) {
    withSpark(new SparkContext("local", "test")) { context =>
      withCoordinatorRef(context) { coordinator =>
        val id = StateStoreProviderId(newId(), UUID.randomUUID())
        val ids = mutable.HashMap.empty[Long, String]
        def open(version: Long): StateStore = StateStore.get(
          id,
          keySchema,
          valueSchema,
          NoPrefixKeyStateEncoderSpec(keySchema),
          version,
          ids.get(version),
          None,
          useColumnFamilies = false,
          getDefaultStoreConf(),
          new Configuration
        )
        checkError(
          intercept[SparkException](open(-1)),
          "CANNOT_LOAD_STATE_STORE.UNEXPECTED_VERSION",
          parameters = Map("version" -> "-1")
        )
        checkError(
          intercept[SparkException](open(1)),
          "CANNOT_LOAD_STATE_STORE.CANNOT_READ_STREAMING_STATE_FILE",
          parameters = Map("fileToRead" -> ".*"),
          matchPVals = true
        )
        val first = open(0)
        def commit(store: StateStore): Unit = {
          store.commit()
          ids ++= store.getStateStoreCheckpointInfo().stateStoreCkptId.map(store.version + 1 -> _)
        }
        put(first, "a", 0, 1)
        commit(first)
        val second = open(1)
        assert(StateStore.isLoaded(id))
        assert(rowPairsToDataSet(second.iterator()) == Set(("a", 0) -> 1))
        put(second, "a", 0, 2)
        commit(second)
        val again = open(0)
        assert(again.version == 0)
        assert(rowPairsToDataSet(again.iterator()) == Set.empty)
        again.abort()
        val latest = open(2)
        assert(rowPairsToDataSet(latest.iterator()) == Set(("a", 0) -> 2))
        latest.abort()
        StateStore.unloadAll()
        assert(!StateStore.isLoaded(id))
        coordinator.deactivateInstances(id.queryRunId)
        assert(rowPairsToDataSet(open(1).iterator()) == Set(("a", 0) -> 1))
      }
    }
  }

  test("the change feed has a key once a batch, as the batch left it, and leaves out a new key that it removed again") {
    tryWithProviderResource(newStoreProvider()) { provider =>
      val first = committed(provider, "a" -> 1, "b" -> 1)
      val store = provider.getStore(1, first)
      put(store, "a", 0, 2)
      put(store, "a", 0, 3)
      put(store, "b", 0, 2)
      store.remove(dataToKeyRow("b", 0))
      put(store, "new", 0, 1)
      store.remove(dataToKeyRow("new", 0))
      store.commit()
      val second = store.getStateStoreCheckpointInfo().stateStoreCkptId
      val feed = provider.getStateStoreChangeDataReader(2, 2, None, second).map { case (change, key, value, batch) =>
        (change, keyRowToData(key), Option(value).map(valueRowToData), batch)
      }
      assert(feed.toSeq.sortBy(_._2) == Seq(
        (RecordType.PUT_RECORD, ("a", 0), Some(3), 1L),
        (RecordType.DELETE_RECORD, ("b", 0), None, 1L)
      ))
    }
  }

  test("a commit whose file cannot be renamed fails with Spark's condition and leaves no version behind") {
    import RenameReturnsFalseFileSystem.scheme
    val directory = newDir()
    val id = StateStoreId(s"$scheme://$directory", 0, 0)
    val hadoop = new Configuration
    hadoop.set(s"fs.$scheme.impl", classOf[RenameReturnsFalseFileSystem].getName)
    tryWithProviderResource(newStoreProvider(id, hadoop)) { provider =>
      val store = provider.getStore(0)
      put(store, "a", 0, 0)
      val error = intercept[SparkException](store.commit())
      assert(error.getCondition == "CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT")
      assert(error.getMessage.contains("operatorId=0, partitionId=0"))
      assert(error.getCause.getMessage.contains("was not renamed to"))
      assert(LaminaStateStoreSuite.latestVersion(id.copy(checkpointRootLocation = directory)) == 0)
    }
  }

  test("a reader keeps reading its version beside a writer, and sees the transaction once it is upgraded") {
    tryWithProviderResource(newStoreProvider()) { provider =>
      val at = committed(provider, "a" -> 1)
      val reader = provider.getReadStore(1, at)
      val writer = provider.getStore(1, at)
      put(writer, "a", 0, 2)
      assert(get(writer, "a", 0).contains(2))
      assert(reader.iterator().map(rowPairToDataPair).toSeq == Seq(("a", 0) -> 1))
      writer.abort()
      val upgraded = provider.upgradeReadStoreToWriteStore(reader, 1, at)
      put(upgraded, "a", 0, 3)
      assert(get(reader, "a", 0).contains(3))
      upgraded.abort()
    }
  }

  test("a reader whose version the table has left is refused, and not shown another version's rows") {
    tryWithProviderResource(newStoreProvider()) { provider =>
      val at = committed(provider, "a" -> 1)
      val reader = provider.getReadStore(1, at)
      assert(get(reader, "a", 0).contains(1))
      val writer = provider.getStore(1, at)
      put(writer, "a", 0, 2)
      writer.commit()
      intercept[StateStoreInvalidStamp](get(reader, "a", 0))
      intercept[StateStoreInvalidStamp](reader.iterator())
      reader.release()
    }
  }

  test("a second writer gets the store when the first one has ended, and not before") {
    tryWithProviderResource(newStoreProvider()) { provider =>
      val first = provider.getStore(0)
      put(first, "a", 0, 1)
      var second: StateStore = null
      val other = new Thread(() => second = provider.getStore(0))
      other.start()
      eventually(timeout(30.seconds))(assert(other.getState == Thread.State.TIMED_WAITING))
      assert(second == null)
      put(first, "b", 0, 1)
      first.abort()
      other.join()
      assert(second.iterator().isEmpty)
      second.abort()
    }
  }

  test("where the thread of a writer opens again, its first open is over and every call of it is refused") {
    tryWithProviderResource(newStoreProvider()) { provider =>
      val first = provider.getStore(0)
      put(first, "a", 0, 1)
      val second = provider.getStore(0)
      assert(second.iterator().isEmpty)
      put(second, "b", 0, 2)
      intercept[StateStoreOperationOutOfOrder](put(first, "c", 0, 3))
      intercept[StateStoreOperationOutOfOrder](get(first, "a", 0))
      intercept[StateStoreOperationOutOfOrder](first.commit())
      first.abort()
      assert(rowPairsToDataSet(second.iterator()) == Set(("b", 0) -> 2))
      second.abort()
    }
  }

  test("a provider that another thread closes goes on for the open that is in use, and commits") {
    val provider = newStoreProvider()
    val at = committed(provider, "a" -> 1)
    val store = provider.getStore(1, at)
    put(store, "b", 0, 2)
    val maintenance = new Thread(() => provider.close())
    maintenance.start()
    maintenance.join()
    put(store, "c", 0, 3)
    assert(rowPairsToDataSet(store.iterator()) == Set(("a", 0) -> 1, ("b", 0) -> 2, ("c", 0) -> 3))
    store.commit()
    val next = store.getStateStoreCheckpointInfo().stateStoreCkptId
    tryWithProviderResource(newStoreProvider(provider.stateStoreId)) { reopened =>
      val found = reopened.getStore(2, next)
      assert(rowPairsToDataSet(found.iterator()) == Set(("a", 0) -> 1, ("b", 0) -> 2, ("c", 0) -> 3))
      found.abort()
    }
    intercept[SparkException](provider.getStore(2, next))
  }

  test("the attempt that the next version was built on stays, whatever a zombie of its version commits after that") {
    val id = newId()
    val run = new Configuration
    run.set(Compat.runIdKey, UUID.randomUUID().toString)
    def opened(): LaminaStateStoreProvider = create(id, hadoop = new Configuration(run))

    tryWithProviderResource(opened()) { zombie =>
      tryWithProviderResource(opened()) { owner =>
        val first = committed(zombie, "a" -> 1)
        val late = zombie.getStore(1, first)
        put(late, "a", 0, 13)
        put(late, "zombie", 0, 13)
        val second = committedOn(owner, 1, first, "a" -> 2)
        val third = committedOn(owner, 2, second, "b" -> 3)
        // it may be refused, and must not count where it is not
        val refused = Try(late.commit()).failed.toOption
        assert(refused.forall(_.getMessage.contains("state.superseded")), refused)
        tryWithProviderResource(opened()) { reopened =>
          // the zombie too, when it gets the store back, and its table is of long ago
          for {
            provider <- Seq(reopened, zombie)
            (version, at, rows) <- Seq(
              (2L, second, Set(("a", 0) -> 2)),
              (3L, third, Set(("a", 0) -> 2, ("b", 0) -> 3))
            )
          } {
            val store = provider.getStore(version, at)
            assert(rowPairsToDataSet(store.iterator()) == rows)
            store.abort()
          }
        }
      }
    }
  }

  /** Commits version 1; gives the id of its attempt, as far as the format has ids. */
  private def committed(provider: LaminaStateStoreProvider, rows: (String, Int)*): Option[String] =
    committedOn(provider, 0, None, rows: _*)

  /** Commits the version after `version`; gives the id of its attempt, as far as the format has ids. */
  private def committedOn(
      provider: LaminaStateStoreProvider,
      version: Long,
      at: Option[String],
      rows: (String, Int)*
  ): Option[String] = {
    val store = provider.getStore(version, at)
    rows.foreach { case (key, value) => put(store, key, 0, value) }
    store.commit()
    store.getStateStoreCheckpointInfo().stateStoreCkptId
  }

  /** The newest version of a store. A commit in a log object is no file of the store, so versions are opened one by one. */
  private def latestVersion(provider: LaminaStateStoreProvider): Long =
    if (!changelog) LaminaStateStoreSuite.latestVersion(provider.stateStoreId)
    else Iterator.from(1).takeWhile(version => Try(provider.getStore(version).abort()).isSuccess).size

  private def newId(): StateStoreId = StateStoreId(newDir(), Random.nextInt(Int.MaxValue), 0)

  private def create(
      storeId: StateStoreId,
      useColumnFamilies: Boolean = false,
      keySchema: StructType = StateStoreTestsHelper.keySchema,
      spec: KeyStateEncoderSpec = NoPrefixKeyStateEncoderSpec(StateStoreTestsHelper.keySchema),
      conf: SQLConf = getDefaultSQLConf(10, 2),
      hadoop: Configuration = new Configuration
  ): LaminaStateStoreProvider = {
    hadoop.setIfUnset(Compat.runIdKey, UUID.randomUUID().toString)
    val provider = new LaminaStateStoreProvider
    provider.init(
      storeId,
      keySchema,
      valueSchema,
      spec,
      useColumnFamilies,
      new StateStoreConf(conf),
      hadoop,
      stateSchemaProvider = Some(new TestStateSchemaProvider)
    )
    provider
  }
}

object LaminaStateStoreSuite {

  /** The newest version of which a store has a file. */
  def latestVersion(id: StateStoreId): Long = {
    val path = id.storeCheckpointLocation()
    val fs = path.getFileSystem(new Configuration)
    val files = if (fs.exists(path)) fs.listStatus(path).map(_.getPath.getName) else Array.empty[String]
    files.filter(_.endsWith(".lam")).map(_.takeWhile(_ != '_').toLong).maxOption.getOrElse(0L)
  }
}

class LaminaStateStoreSuite extends LaminaStateStoreSuiteBase(format = 1)
class LaminaStateStoreV2Suite extends LaminaStateStoreSuiteBase(format = 2)
class LaminaStateStoreRowChecksumSuite extends LaminaStateStoreSuiteBase(format = 1, rowChecksums = true)
class LaminaStateStoreFullSuite extends LaminaStateStoreSuiteBase(format = 1, compaction = "full")
class LaminaStateStoreFullV2Suite extends LaminaStateStoreSuiteBase(format = 2, compaction = "full")
class LaminaStateStoreRollingSuite extends LaminaStateStoreSuiteBase(format = 1, compaction = "rolling")
class LaminaStateStoreRollingV2Suite extends LaminaStateStoreSuiteBase(format = 2, compaction = "rolling")
class LaminaStateStoreTablesSuite extends LaminaStateStoreSuiteBase(format = 1, backend = "rocksdb")
class LaminaStateStoreTablesV2Suite extends LaminaStateStoreSuiteBase(format = 2, backend = "rocksdb")
class LaminaStateStoreChangelogV2Suite extends LaminaStateStoreSuiteBase(format = 2, changelog = true)
class LaminaStateStoreTablesChangelogV2Suite
    extends LaminaStateStoreSuiteBase(format = 2, backend = "rocksdb", changelog = true)
