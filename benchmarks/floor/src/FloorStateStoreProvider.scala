// The floor that the benchmarks divide by: a state store that is a java.util.HashMap of copied rows and nothing else.
// It has no files, no versions and no recovery; an attempt that is given up after a change ends the store.
package lamina.benchmarks.floor

import java.util.HashMap

import scala.jdk.CollectionConverters._

import org.apache.hadoop.conf.Configuration
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

final class FloorStateStoreProvider extends StateStoreProvider {
  private var storeId: StateStoreId = _
  private val rows = new HashMap[UnsafeRow, UnsafeRow]()
  private var current = 0L
  private var broken = false

  override def init(
      stateStoreId: StateStoreId,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useColumnFamilies: Boolean,
      storeConfs: StateStoreConf,
      hadoopConf: Configuration,
      useMultipleValuesPerKey: Boolean,
      stateSchemaProvider: Option[StateSchemaProvider]): Unit = {
    require(!useColumnFamilies && !useMultipleValuesPerKey, "the floor has one plain column family")
    storeId = stateStoreId
  }

  override def stateStoreId: StateStoreId = storeId

  override def close(): Unit = ()

  override def getStore(
      version: Long,
      stateStoreCkptId: Option[String],
      forceSnapshotOnCommit: Boolean,
      loadEmpty: Boolean): StateStore = {
    if (broken || version != current) {
      throw new IllegalStateException(s"the floor keeps nothing: $storeId is at $current, not at $version")
    }
    new Store(version, stateStoreCkptId)
  }

  private final class Store(val version: Long, base: Option[String]) extends StateStore {
    private var changed = false
    private var committed = false

    override def id: StateStoreId = storeId

    override def get(key: UnsafeRow, colFamilyName: String): UnsafeRow = rows.get(key)

    override def put(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = {
      changed = true
      rows.put(key.copy(), value.copy())
    }

    override def remove(key: UnsafeRow, colFamilyName: String): Unit = {
      changed = true
      rows.remove(key)
    }

    override def iterator(colFamilyName: String): StateStoreIterator[UnsafeRowPair] = {
      val pair = new UnsafeRowPair()
      new StateStoreIterator(rows.entrySet().iterator().asScala.map(e => pair.withRows(e.getKey, e.getValue)))
    }

    override def commit(): Long = {
      current = version + 1
      committed = true
      current
    }

    override def abort(): Unit = if (changed && !committed) broken = true

    override def hasCommitted: Boolean = committed

    override def getStateStoreCheckpointInfo(): StateStoreCheckpointInfo =
      StateStoreCheckpointInfo(storeId.partitionId, version + 1, Some(s"floor-${version + 1}"), base)

    override def metrics: StateStoreMetrics = StateStoreMetrics(rows.size(), 0L, Map.empty)

    override def allColumnFamilyNames: Set[String] = Set(StateStore.DEFAULT_COL_FAMILY_NAME)

    override def valuesIterator(key: UnsafeRow, colFamilyName: String): Iterator[UnsafeRow] = unsupported()

    override def prefixScan(prefix: UnsafeRow, colFamilyName: String): StateStoreIterator[UnsafeRowPair] = unsupported()

    override def prefixScanWithMultiValues(
        prefix: UnsafeRow,
        colFamilyName: String): StateStoreIterator[UnsafeRowPair] = unsupported()

    override def iteratorWithMultiValues(colFamilyName: String): StateStoreIterator[UnsafeRowPair] = unsupported()

    override def removeColFamilyIfExists(colFamilyName: String): Boolean = unsupported()

    override def createColFamilyIfAbsent(
        colFamilyName: String,
        keySchema: StructType,
        valueSchema: StructType,
        keyStateEncoderSpec: KeyStateEncoderSpec,
        useMultipleValuesPerKey: Boolean,
        isInternal: Boolean): Unit = unsupported()

    override def putList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit = unsupported()

    override def merge(key: UnsafeRow, value: UnsafeRow, colFamilyName: String): Unit = unsupported()

    override def mergeList(key: UnsafeRow, values: Array[UnsafeRow], colFamilyName: String): Unit = unsupported()

    private def unsupported(): Nothing = throw new UnsupportedOperationException("the floor is a plain map")
  }
}
