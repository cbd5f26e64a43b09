package org.apache.spark.sql.lamina

import org.apache.spark.sql.execution.streaming.state.NoPrefixKeyStateEncoderSpec
import org.apache.spark.sql.types.StructType

/** The column families of a store that has one, for tests of tables without a provider. */
object TestFamilies {
  private val schema = new StructType().add("key", "string")

  val one: ColumnFamilies = ColumnFamilies.Empty.add(id =>
    ColumnFamily(
      id,
      "default",
      internal = false,
      schema,
      schema,
      NoPrefixKeyStateEncoderSpec(schema),
      "unsaferow",
      multiValue = false,
      rowChecksum = false
    )
  )
}
