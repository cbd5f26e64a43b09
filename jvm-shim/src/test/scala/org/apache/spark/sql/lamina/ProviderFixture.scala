package org.apache.spark.sql.lamina

import java.nio.file.{Files, Path, Paths}
import java.nio.file.attribute.PosixFilePermissions
import java.util.{Properties, UUID}

import scala.jdk.CollectionConverters._
import scala.util.Using

import org.apache.hadoop.conf.Configuration
import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.{TaskContext, TaskContextImpl}
import org.apache.spark.executor.TaskMetrics
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.lamina.table.EntrySink
import org.apache.spark.sql.lamina.wire.{Engine, ProcessSettings}
import org.apache.spark.sql.types.{IntegerType, LongType, StructType}

/** Where the engine of this repository is. */
private[lamina] object RepositoryEngine {
  val sources: Path = Iterator
    .iterate(Paths.get("").toAbsolutePath)(_.getParent)
    .takeWhile(_ != null)
    .map(_.resolve("python"))
    .find(python => Files.isDirectory(python.resolve("lamina/engine")))
    .getOrElse(throw new IllegalStateException("run the tests inside the repository: they start its engine"))

  /** A Python that has it, as a program in a directory. */
  def python(directory: Path): Path = {
    val interpreter = sys.env.getOrElse("PYSPARK_PYTHON", "python3")
    val program = Files.writeString(
      directory.resolve("python"),
      s"""#!/bin/sh
         |PYTHONPATH='$sources':"$$PYTHONPATH" exec '$interpreter' "$$@"
         |""".stripMargin
    )
    Files.setPosixFilePermissions(program, PosixFilePermissions.fromString("rwx------"))
  }
}

private[lamina] object TestTasks {

  /** The context of a task of this number, beside which others may run. */
  def context(id: Long): TaskContextImpl =
    new TaskContextImpl(0, 0, 0, id, 0, 1, null, new Properties, null, new TaskMetrics, 1, Map.empty)
}

/** A provider that takes itself for one that Spark has loaded. */
private[lamina] class StreamingProvider extends LaminaStateStoreProvider {
  override private[lamina] def isStreaming: Boolean = true

  /** Whether stores are handed out before they are restored; most suites look at what an open has done. */
  @volatile var ahead = false
  override private[lamina] def opensAhead(version: Long): Boolean = ahead
}

/** Holds calls of one provider to its engine: those that are held wait until they are let go. */
private[lamina] final class HeldEngine(
    id: StateStoreId,
    conf: StateStoreConf,
    hadoop: Configuration,
    process: ProcessSettings,
    settings: Map[String, String]
) extends EngineStore(id, conf, hadoop, process, settings) {
  @volatile var onBegin: () => Unit = () => ()
  @volatile var onLoad: () => Unit = () => ()
  @volatile var onOpened: EngineHandle => Unit = _ => ()
  @volatile var closings = 0
  @volatile var begins = 0

  /** Whether the engine's storage counts as that of another machine. */
  @volatile var isFar = false

  override protected def looksFar(opened: EngineHandle): Boolean = isFar || super.looksFar(opened)

  override private[lamina] def openStore(engine: Engine, readOnly: Boolean): EngineHandle = {
    val opened = super.openStore(engine, readOnly)
    onOpened(opened)
    opened
  }

  override def begin(
      version: Long,
      attempt: Option[String],
      loadEmpty: Boolean,
      forceSnapshot: Boolean,
      have: Boolean
  ): Begun = {
    begins += 1
    val begun = super.begin(version, attempt, loadEmpty, forceSnapshot, have)
    onBegin()
    begun
  }

  override def load(version: Long, attempt: Option[String], have: Option[Position])(
      onHeader: LoadHeader => Unit
  )(sink: EntrySink): Unit = {
    onLoad()
    super.load(version, attempt, have)(onHeader)(sink)
  }

  override def closeLater(): Unit = {
    super.closeLater()
    closings += 1
  }
}

/** A streaming provider whose calls to the engine a test may hold. */
private[lamina] final class HeldProvider extends StreamingProvider {
  var held: HeldEngine = _

  /** What Spark's driver would say. */
  @volatile var stopped = false
  override private[lamina] def isStopped: Boolean = stopped

  /** Whether it takes itself for one that Spark has loaded. */
  @volatile var ofQuery = true
  override private[lamina] def isStreaming: Boolean = ofQuery

  override private[lamina] def newEngine(
      id: StateStoreId,
      storeConf: StateStoreConf,
      hadoopConf: Configuration,
      process: ProcessSettings,
      settings: Map[String, String]
  ): EngineStore = {
    held = new HeldEngine(id, storeConf, hadoopConf, process, settings)
    held
  }
}

/** Suites that call providers as Spark does, on the engine of this repository: stores of whole numbers by long keys. */
private[lamina] abstract class ProviderFixture extends AnyFunSuite with BeforeAndAfterAll {
  private val root = Files.createTempDirectory("lamina-providers-")
  protected val keySchema: StructType = new StructType().add("key", LongType, nullable = false)
  protected val valueSchema: StructType = new StructType().add("value", IntegerType)
  private val toKey = UnsafeProjection.create(keySchema)
  private val toValue = UnsafeProjection.create(valueSchema)

  protected val family: String = StateStore.DEFAULT_COL_FAMILY_NAME

  override protected def afterAll(): Unit = {
    // tables that wait for the next provider would give way while another suite counts its own
    while (TableRegistry.ofExecutor.evictOne()) ()
    Engine.shutdown()
    Using.resource(Files.walk(root))(_.iterator.asScala.toList).reverse.foreach(Files.delete)
    super.afterAll()
  }

  private lazy val python: Path = RepositoryEngine.python(root)

  protected def newCheckpoint(): Path = Files.createTempDirectory(root, "checkpoint-")

  protected def newId(): StateStoreId = StateStoreId(newCheckpoint().resolve("state").toString, 0, 0)

  /** A provider of format v2; its table stays for `handOverMs` when it is closed. */
  protected def provide(
      id: StateStoreId,
      ordered: Boolean = false,
      streaming: Boolean = true,
      handOverMs: Long = 0L
  ): LaminaStateStoreProvider = {
    init(if (streaming) new StreamingProvider else new LaminaStateStoreProvider, id, ordered, handOverMs)
  }

  /** A provider whose calls to the engine may be held, otherwise as `provide` gives them. */
  protected def provideHeld(
      id: StateStoreId,
      handOverMs: Long = 60000L,
      settings: Map[String, String] = Map.empty
  ): HeldProvider = init(new HeldProvider, id, ordered = false, handOverMs, settings = settings)

  /** A provider of lists of whole numbers, otherwise as `provide` gives them. */
  protected def provideLists(id: StateStoreId, encoding: String = "unsaferow"): LaminaStateStoreProvider =
    init(new StreamingProvider, id, ordered = false, handOverMs = 0L, lists = true, encoding = encoding)

  /** Makes a provider ready, of Spark's or of this project's, for the schemas above or another value. */
  protected def init[P <: StateStoreProvider](
      provider: P,
      id: StateStoreId,
      ordered: Boolean = false,
      handOverMs: Long = 0L,
      lists: Boolean = false,
      format: Int = 2,
      encoding: String = "unsaferow",
      rowChecksum: Boolean = false,
      valueSchema: StructType = valueSchema,
      settings: Map[String, String] = Map.empty,
      hadoopKeys: Map[String, String] = Map.empty
  ): P = {
    val conf = new SQLConf
    conf.setConf(SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION, format)
    conf.setConf(SQLConf.STREAMING_STATE_STORE_ENCODING_FORMAT, encoding)
    conf.setConf(SQLConf.STATE_STORE_ROW_CHECKSUM_ENABLED, rowChecksum)
    conf.setConf(SQLConf.STATE_STORE_ROW_CHECKSUM_READ_VERIFICATION_RATIO, 1L)
    Seq(
      "engine.python" -> python.toString,
      "heap.maxBytes" -> "256m",
      "heap.handOverMs" -> s"$handOverMs",
      "storage.cache.maxBytes" -> "0"
    ).concat(settings).foreach { case (name, value) => conf.setConfString(StoreSettings.Prefix + name, value) }
    val hadoop = new Configuration
    hadoop.set(Compat.runIdKey, UUID.randomUUID().toString)
    hadoop.set(s"fs.${HeldFileSystem.Scheme}.impl", classOf[HeldFileSystem].getName)
    hadoopKeys.foreach { case (key, value) => hadoop.set(key, value) }
    provider.init(
      id,
      keySchema,
      valueSchema,
      if (ordered) RangeKeyScanStateEncoderSpec(keySchema, Seq(0)) else NoPrefixKeyStateEncoderSpec(keySchema),
      useColumnFamilies = lists,
      new StateStoreConf(conf),
      hadoop,
      useMultipleValuesPerKey = lists,
      stateSchemaProvider = if (encoding == "avro") Some(new TestStateSchemaProvider) else None
    )
    provider
  }

  /** Runs `body` as a task's thread does, under the name that executors give it. */
  protected def asTask[A](task: TaskContext)(body: => A): A = {
    val thread = Thread.currentThread()
    val name = thread.getName
    thread.setName(s"task 0.0 in stage 0.0 (TID ${task.taskAttemptId()})")
    TaskContext.setTaskContext(task)
    try body
    finally {
      TaskContext.unset()
      thread.setName(name)
    }
  }

  /** As a row of its own. Projections have one row, and tests have several threads. */
  private def row(projection: UnsafeProjection, field: Any): UnsafeRow =
    projection.synchronized(projection(InternalRow(field)).copy())

  protected def key(key: Long): UnsafeRow = row(toKey, key)

  protected def value(value: Int): UnsafeRow = row(toValue, value)

  protected def put(store: StateStore, rows: (Long, Int)*): Unit = rows.foreach { case (at, number) =>
    store.put(key(at), value(number), family)
  }

  protected def contents(store: ReadStateStore): Map[Long, Int] =
    store.iterator(family).map(pair => pair.key.getLong(0) -> pair.value.getInt(0)).toMap

  /** Changes a version and commits the next; the id of its attempt. */
  protected def commit(provider: LaminaStateStoreProvider, version: Long, base: Option[String])(
      change: StateStore => Unit
  ): Option[String] = {
    val store = provider.getStore(version, base)
    change(store)
    store.commit()
    attempt(store)
  }

  protected def attempt(committed: StateStore): Option[String] =
    committed.getStateStoreCheckpointInfo().stateStoreCkptId

  /** What a provider that has nothing in memory finds as a version. */
  protected def restored(id: StateStoreId, version: Long, attempt: Option[String], ordered: Boolean = false)
      : Map[Long, Int] = {
    val provider = provide(id, ordered, streaming = false)
    try contents(provider.getReadStore(version, attempt))
    finally provider.close()
  }

  /** The files of a store's commits, by version. */
  protected def commitFiles(id: StateStoreId): Map[Long, Path] = {
    val directory = Paths.get(id.storeCheckpointLocation().toUri.getPath)
    if (!Files.exists(directory)) Map.empty
    else
      Using.resource(Files.list(directory))(_.iterator.asScala.toList).filter(_.toString.endsWith(".lam"))
        .map(file => file.getFileName.toString.takeWhile(_ != '_').toLong -> file).toMap
  }
}
