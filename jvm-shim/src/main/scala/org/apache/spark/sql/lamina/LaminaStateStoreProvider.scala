package org.apache.spark.sql.lamina

import java.util.UUID

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration

import org.apache.spark.{SPARK_VERSION, SparkConf, SparkEnv, TaskContext}
import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.lamina.table.PagePool
import org.apache.spark.sql.lamina.wire.{DaemonThreads, ProcessSettings}
import org.apache.spark.sql.types.StructType
import org.apache.spark.util.NextIterator

/**
 * Spark's provider of one store: opens versions of it, keeps its table between batches, and answers what Spark asks
 * about the store as a whole. Rows are answered by [[LaminaStateStore]], files are the engine's.
 *
 * A provider that Spark's `StateStore` loaded is *streaming*: its opens confirm versions, and tables are handed over to
 * it. Any other one (state reader, tools) is treated as a reader until it commits.
 */
class LaminaStateStoreProvider
    extends StateStoreProvider
    with SupportsFineGrainedReplay
    with MaintenanceEntries
    with Logging {

  @volatile private var storeId: StateStoreId = _
  private var keySchema: StructType = _
  private var valueSchema: StructType = _
  private var storeConf: StateStoreConf = _
  private var hadoopConf: Configuration = _
  private var withColumnFamilies = false
  private[lamina] var opens: StoreOpener = _
  @volatile private var nextReport = 0L
  private[lamina] var commits: Commits = _

  override def init(
      stateStoreId: StateStoreId,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useColumnFamilies: Boolean,
      storeConf: StateStoreConf,
      hadoopConf: Configuration,
      useMultipleValuesPerKey: Boolean,
      stateSchemaProvider: Option[StateSchemaProvider]
  ): Unit = {
    SupportedSpark.require(SPARK_VERSION)
    this.storeId = stateStoreId
    this.keySchema = keySchema
    this.valueSchema = valueSchema
    this.storeConf = storeConf
    this.hadoopConf = hadoopConf
    this.withColumnFamilies = useColumnFamilies
    if (useMultipleValuesPerKey) {
      require(useColumnFamilies, "Multiple values per key support requires column families to be enabled.")
    }
    val conf = StoreSettings.sparkConf
    val settings = new StoreSettings(storeConf)
    val pool = newPool(settings, conf)
    val engine = newEngine(stateStoreId, storeConf, hadoopConf, settings.process(conf), settings.sent)
    val counters = new Counters
    val newCodecs = () => {
      val codecs = new Codecs(storeConf, stateSchemaProvider, stateStoreId.toString)
      codecs.register(
        StateStore.DEFAULT_COL_FAMILY_NAME,
        keySchema,
        valueSchema,
        keyStateEncoderSpec,
        useMultipleValuesPerKey,
        internal = false
      )
      codecs
    }
    // a store that is closed after each commit waits for it: nobody else would know what became of its table
    val isBehindBarrier =
      () => LaminaCheckpointFileManager.isAskedFor(settings, hadoopConf) && !storeConf.unloadOnCommit
    commits = new Commits(stateStoreId, storeConf, engine, counters, live => report(live, counters), isBehindBarrier)
    val stayMs = settings.long("heap.handOverMs", 120000L)
    opens = new StoreOpener(this, storeConf, engine, pool, newCodecs, counters, stayMs, registry, scheduling)
  }

  /** What this provider shares with the others of its JVM. */
  private[lamina] def registry: TableRegistry = TableRegistry.ofExecutor
  private[lamina] def scheduling: Scheduling = Scheduling.Threads
  private[lamina] def newPool(settings: StoreSettings, conf: SparkConf): PagePool = StatePool.get(settings, conf)

  /** This store's side of the engine. */
  private[lamina] def newEngine(
      id: StateStoreId,
      storeConf: StateStoreConf,
      hadoopConf: Configuration,
      process: ProcessSettings,
      settings: Map[String, String]
  ): EngineStore = new EngineStore(id, storeConf, hadoopConf, process, settings)

  override def stateStoreId: StateStoreId = storeId

  private[lamina] def usesColumnFamilies: Boolean = withColumnFamilies

  /** This provider's name in Spark's registry of loaded providers; none where it has no query run. */
  private def providerId: Option[StateStoreProviderId] =
    try Option(hadoopConf.get(Compat.runIdKey)).map(run => StateStoreProviderId(storeId, UUID.fromString(run)))
    catch { case _: IllegalArgumentException => None }

  /** Takes a lock of Spark's, so it must not be asked under one of ours. */
  private[lamina] def isStreaming: Boolean = providerId.exists(StateStore.isLoaded)

  /** Whether a store that has to be restored is handed out before it is: from local files it comes as quickly alone. */
  private[lamina] def opensAhead(version: Long): Boolean = isStreaming && opens.isRemote(version)

  /**
   * Whether Spark's driver says that this store is of no query on this executor any more. Its maintenance closes the
   * provider later.
   */
  private[lamina] def isStopped: Boolean =
    try
      (for (id <- providerId; env <- Option(SparkEnv.get))
        yield !StateStoreCoordinatorRef.forExecutor(env).verifyIfInstanceActive(id, env.executorId)).getOrElse(false)
    catch { case NonFatal(_) => false }

  // ---- opens

  override def getStore(
      version: Long,
      stateStoreCkptId: Option[String],
      forceSnapshotOnCommit: Boolean,
      loadEmpty: Boolean
  ): StateStore = {
    val task = TaskContext.get()
    // the task of a join asks for its other stores while the first one is restored
    if (task != null && version > 0 && !loadEmpty && !opens.hasTable && opensAhead(version))
      opens.writeAhead(version, stateStoreCkptId, forceSnapshotOnCommit, task)
    else opens.write(version, stateStoreCkptId, forceSnapshotOnCommit, loadEmpty)
  }

  override def getReadStore(version: Long, uniqueId: Option[String]): ReadStateStore = opens.read(version, uniqueId)

  override def upgradeReadStoreToWriteStore(
      readStore: ReadStateStore,
      version: Long,
      uniqueId: Option[String],
      forceSnapshotOnCommit: Boolean
  ): StateStore =
    readStore match {
      case store: LaminaStateStore =>
        assert(
          version == store.version,
          s"Can only upgrade readStore to writeStore with the same version, readStoreVersion: ${store.version}, " +
            s"writeStoreVersion: $version"
        )
        assert(storeId == store.id, "Can only upgrade readStore to writeStore with the same stateStoreId")
        // Spark may have replaced the provider between the two phases; the one that opened the table goes on with it.
        if (store.provider ne this)
          store.provider.upgradeReadStoreToWriteStore(readStore, version, uniqueId, forceSnapshotOnCommit)
        else opens.upgrade(store, forceSnapshotOnCommit)
      case other =>
        throw new IllegalArgumentException(s"Can only upgrade a store of lamina, not a ${other.getClass.getName}")
    }

  override def replayStateFromSnapshot(
      snapshotVersion: Long,
      endVersion: Long,
      readOnly: Boolean,
      snapshotVersionStateStoreCkptId: Option[String],
      endVersionStateStoreCkptId: Option[String]
  ): StateStore =
    opens.replay(snapshotVersion, endVersion, readOnly, snapshotVersionStateStoreCkptId, endVersionStateStoreCkptId)

  override def replayReadStateFromSnapshot(
      snapshotVersion: Long,
      endVersion: Long,
      snapshotVersionStateStoreCkptId: Option[String],
      endVersionStateStoreCkptId: Option[String]
  ): ReadStateStore =
    replayStateFromSnapshot(
      snapshotVersion,
      endVersion,
      readOnly = true,
      snapshotVersionStateStoreCkptId,
      endVersionStateStoreCkptId
    )

  override def getStateStoreChangeDataReader(
      startVersion: Long,
      endVersion: Long,
      colFamilyNameOpt: Option[String],
      endVersionStateStoreCkptId: Option[String]
  )
      : NextIterator[(RecordType.Value, UnsafeRow, UnsafeRow, Long)] =
    opens.changes(startVersion, endVersion, colFamilyNameOpt, endVersionStateStoreCkptId)

  // ---- maintenance

  override protected def maintainFiles(): Unit = quietly {
    opens.maintainFiles()
    providerId.foreach(reportSnapshot)
  }

  override protected def maintainMemory(): Unit = quietly {
    opens.maintainMemory()
    registry.expire()
  }

  /** An error of maintenance must not unload the provider: nothing that a query needs was lost. */
  private def quietly(action: => Unit): Unit =
    try action
    catch { case NonFatal(error) => logWarning(s"Maintenance of $storeId did not finish", error) }

  /**
   * Tells Spark that the chain of this store is short. Spark would take a store that never says so for one that lags,
   * and ask for a full snapshot in each batch; here compaction bounds the chain. Takes no lock of Spark's: the one of the
   * loaded providers is held while Spark waits for its maintenance threads to end.
   */
  protected def reportSnapshot(id: StateStoreProviderId): Unit =
    for (env <- Option(SparkEnv.get); version <- opens.version) {
      StateStoreCoordinatorRef.forExecutor(env).snapshotUploaded(id, version, System.currentTimeMillis())
    }

  override def close(): Unit = if (opens != null) opens.close()

  // ---- metrics and checks for the opens

  /** The first thing that Spark's driver asks of a provider, so the first chance to say that the jar is a wrong one. */
  override def supportedCustomMetrics: Seq[StateStoreCustomMetric] = {
    SupportedSpark.require(SPARK_VERSION)
    LaminaExtensions.requireForTransformWithState()
    Metrics.All
  }

  /** What the column families `families` hold now, changes of the open transaction included. */
  private[lamina] def measure(live: LiveTable, families: ColumnFamilies): StateStoreMetrics = {
    val memory = live.table.memory
    val rows = families.all.filterNot(_.internal).map(family => live.table.rows(family.id)).sum
    val custom = Metrics.memory(memory) ++ Metrics.tables(live.table.below) ++ opens.stored ++ opens.shares
    StateStoreMetrics(rows, memory.total, custom)
  }

  private def report(live: LiveTable, counters: Counters): StateStoreMetrics = {
    live.countBelow(counters.add)
    val measured = measure(live, live.at.families)
    measured.copy(customMetrics = measured.customMetrics ++ counters.drain())
  }

  private[lamina] def reportCommit(version: Long): Unit = {
    if (storeConf.commitValidationEnabled) StateStore.reportCommitToCoordinator(version, storeId, hadoopConf)
    if (nextReport <= version) {
      nextReport = version + LaminaStateStoreProvider.ReportEvery
      LaminaStateStoreProvider.reports.execute { () =>
        quietly(providerId.filter(StateStore.isLoaded).foreach(reportSnapshot))
      }
    }
  }

  private[lamina] def validateRows(key: UnsafeRow, value: UnsafeRow): Unit =
    StateStoreProvider.validateStateRowFormat(key, keySchema, value, valueSchema, storeId, storeConf)

  /** Spark's rules for a column family that a row call names; whether it exists is checked by the caller. */
  private[lamina] def verifyFamily(operation: String, name: String): Unit =
    if (name != StateStore.DEFAULT_COL_FAMILY_NAME) {
      requireColumnFamilies(operation)
      if (name.isEmpty || name.trim != name)
        throw StateStoreErrors.cannotUseColumnFamilyWithInvalidName(operation, name)
    }

  /** Spark's rules for the name of a column family that is created or removed. */
  private[lamina] def verifyFamilyCreation(operation: String, name: String, isInternal: Boolean): Unit = {
    requireColumnFamilies(operation)
    if (name.isEmpty || name.trim != name || (name == StateStore.DEFAULT_COL_FAMILY_NAME && !isInternal)) {
      throw StateStoreErrors.cannotUseColumnFamilyWithInvalidName(operation, name)
    }
    if (!isInternal && name.charAt(0) == '$') throw StateStoreErrors.cannotCreateColumnFamilyWithReservedChars(name)
  }

  private def requireColumnFamilies(operation: String): Unit = if (!withColumnFamilies) {
    throw StateStoreErrors.unsupportedOperationException(
      operation,
      "multiple column families is disabled in LaminaStateStoreProvider"
    )
  }
}

object LaminaStateStoreProvider {

  /**
   * Versions between two reports to Spark; it takes a store for one that lags after five times `minDeltasForSnapshot`.
   */
  private val ReportEvery = 20L

  /** Each report waits for the driver, which may be busy for long. */
  private lazy val reports = DaemonThreads.pool("lamina-report", 1)
}
