// A chain of state versions made and read through the provider's interface alone, so that every provider gets the same
// one: a first version with all keys, then increments of puts, 10 % deletes and 10 % appends to lists. Each batch is a
// Spark job of one task a partition, as a stateful operator's is.
package lamina.benchmarks.restore

import java.util.UUID
import java.util.concurrent.ConcurrentHashMap
import java.util.concurrent.atomic.AtomicLong

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.unsafe.Platform
import org.apache.spark.util.SerializableConfiguration

import lamina.benchmarks.micro.KeyBlock
import lamina.benchmarks.micro.KeyBlock.{KeySchema, ValueSchema}

/**
 * Shape of a chain.
 *
 * @param lists whether the provider has column families and lists; without them a list's append is a put
 */
final case class Shape(partitions: Int, keys: Int, batchRows: Int, lists: Boolean) {
  /** One key in twenty has a list. */
  def listKeys: Int = keys / 20
  def plainKeys: Int = keys - listKeys
}

/** What a full scan found: rows and exclusive or of their hashes, lists apart. */
final case class Found(plainRows: Long, plainHash: Long, listRows: Long, listHash: Long) {
  def +(other: Found): Found = Found(
    plainRows + other.plainRows, plainHash ^ other.plainHash, listRows + other.listRows, listHash ^ other.listHash)
}

object Chain {
  private val Plain = "plain"
  private val Lists = "lists"

  /** The providers of this JVM, by chain and partition. */
  private val providers = new ConcurrentHashMap[(String, Int), StateStoreProvider]()

  /** When the first task of the batch that runs began, before its provider's `init`. */
  private val begun = new AtomicLong

  /**
   * Runs one batch on every partition and returns the new ids (empty strings where the provider makes none).
   *
   * @param version the version the batch is based on; version 0 puts all keys, and asks for a snapshot
   * @param ids the ids of that version
   */
  def batch(
      spark: SparkSession,
      checkpoint: String,
      shape: Shape,
      run: String,
      version: Long,
      ids: Array[String]): Array[String] = {
    val conf = new StateStoreConf(spark.sessionState.conf)
    val hadoop = new SerializableConfiguration(spark.sessionState.newHadoopConf())
    val partitions = spark.sparkContext.parallelize(0 until shape.partitions, shape.partitions)
    begun.set(Long.MaxValue)
    spark.sparkContext.runJob(partitions, (context: TaskContext, _: Iterator[Int]) => {
      begun.accumulateAndGet(System.nanoTime(), (a, b) => math.min(a, b))
      val partition = context.partitionId()
      val provider = providers.computeIfAbsent((checkpoint, partition), _ => {
        val id = StateStoreProviderId(StateStoreId(s"$checkpoint/state", 0, partition), UUID.fromString(run))
        val spec = NoPrefixKeyStateEncoderSpec(KeySchema)
        StateStoreProvider.createAndInit(
          id, KeySchema, ValueSchema, spec, shape.lists, conf, hadoop.value, false, None)
      })
      val base = Some(ids(partition)).filter(_.nonEmpty)
      val store = provider.getStore(version, base, forceSnapshotOnCommit = version == 0)
      if (shape.lists) {
        store.createColFamilyIfAbsent(Plain, KeySchema, ValueSchema, NoPrefixKeyStateEncoderSpec(KeySchema))
        store.createColFamilyIfAbsent(
          Lists, KeySchema, ValueSchema, NoPrefixKeyStateEncoderSpec(KeySchema), useMultipleValuesPerKey = true)
      }
      if (version == 0) fill(store, shape, partition) else change(store, shape, partition, version)
      store.commit()
      store.getStateStoreCheckpointInfo().stateStoreCkptId.getOrElse("")
    })
  }

  /** Nanoseconds since the first task of the last batch began: without what Spark takes to schedule a first job. */
  def sinceBegun: Long = System.nanoTime() - begun.get

  /** Scans a whole version. */
  def scan(spark: SparkSession, checkpoint: String, shape: Shape, version: Long, ids: Array[String]): Found = {
    val partitions = spark.sparkContext.parallelize(0 until shape.partitions, shape.partitions)
    spark.sparkContext.runJob(partitions, (context: TaskContext, _: Iterator[Int]) => {
      val partition = context.partitionId()
      val provider = providers.get((checkpoint, partition))
      val store = provider.getReadStore(version, Some(ids(partition)).filter(_.nonEmpty))
      val found = if (shape.lists) {
        val plain = hashAll(store.iterator(Plain))
        val lists = hashAll(store.iteratorWithMultiValues(Lists))
        Found(plain.plainRows, plain.plainHash, lists.listRows, lists.listHash)
      } else hashAll(store.iterator(StateStore.DEFAULT_COL_FAMILY_NAME))
      store.release()
      found
    }).reduce(_ + _)
  }

  private def fill(store: StateStore, shape: Shape, partition: Int): Unit = {
    val writer = new Writer(store, shape)
    partitionOf(shape.plainKeys, shape, partition).foreach(id => writer.put(id, id))
    partitionOf(shape.listKeys, shape, partition).foreach { id =>
      writer.append(id, id)
      writer.append(id, id + 1)
    }
  }

  /** Reads what it puts first, as an aggregation does. */
  private def change(store: StateStore, shape: Shape, partition: Int, version: Long): Unit = {
    val writer = new Writer(store, shape)
    val random = new java.util.SplittableRandom(version * 1000003L + partition)
    def draw(keys: Int): Long = random.nextLong(keys.toLong / shape.partitions) * shape.partitions + partition
    var i = 0
    while (i < shape.batchRows / shape.partitions) {
      i % 10 match {
        case 0 => writer.remove(draw(shape.plainKeys))
        case 1 => writer.append(draw(shape.listKeys), version * 7919L + i)
        case _ => writer.put(draw(shape.plainKeys), version * 7919L + i)
      }
      i += 1
    }
  }

  private def partitionOf(keys: Int, shape: Shape, partition: Int): Iterator[Long] =
    Iterator.range(partition, keys, shape.partitions).map(_.toLong)

  private final class Writer(store: StateStore, shape: Shape) {
    private val plain = if (shape.lists) Plain else StateStore.DEFAULT_COL_FAMILY_NAME
    private val valueBytes = new Array[Byte](KeyBlock.ValueBytes)
    private val value = new UnsafeRow(3)
    private val keyBytes = new Array[Byte](KeyBlock.KeyBytes)
    private val key = new UnsafeRow(1)
    value.pointTo(valueBytes, KeyBlock.ValueBytes)
    key.pointTo(keyBytes, KeyBlock.KeyBytes)

    private def point(id: Long, list: Boolean): Unit = {
      KeyBlock.writeKey(keyBytes, 0, id)
      if (list) keyBytes(16) = ListMark
    }

    def put(id: Long, n: Long): Unit = {
      point(id, list = false)
      val old = store.get(key, plain)
      KeyBlock.writeValue(valueBytes, if (old == null) n else n ^ old.getLong(0))
      store.put(key, value, plain)
    }

    def remove(id: Long): Unit = {
      point(id, list = false)
      store.remove(key, plain)
    }

    def append(id: Long, n: Long): Unit = {
      point(id, list = true)
      KeyBlock.writeValue(valueBytes, n)
      if (shape.lists) store.merge(key, value, Lists) else store.put(key, value, plain)
    }
  }

  /** First letter of the keys that have lists. */
  private val ListMark = 'l'.toByte

  private def hashAll(pairs: StateStoreIterator[UnsafeRowPair]): Found = {
    var plainRows, plainHash, listRows, listHash = 0L
    while (pairs.hasNext) {
      val pair = pairs.next()
      val key = pair.key
      val hash = hashBytes(pair.value, hashBytes(key, 42))
      if (Platform.getByte(key.getBaseObject, key.getBaseOffset + 16) == ListMark) {
        listRows += 1
        listHash ^= hash
      } else {
        plainRows += 1
        plainHash ^= hash
      }
    }
    pairs.close()
    Found(plainRows, plainHash, listRows, listHash)
  }

  private def hashBytes(row: UnsafeRow, seed: Long): Long = {
    var hash = seed
    var i = 0
    while (i < row.getSizeInBytes) {
      hash = (hash ^ Platform.getLong(row.getBaseObject, row.getBaseOffset + i)) * 0x9e3779b97f4a7c15L
      hash ^= hash >>> 29
      i += 8
    }
    hash
  }
}
