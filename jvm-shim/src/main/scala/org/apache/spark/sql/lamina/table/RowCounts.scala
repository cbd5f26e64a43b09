package org.apache.spark.sql.lamina.table

/** How many rows a column family has, and the bytes of their keys and values. */
private[table] final class RowCounts {
  var rows = 0L
  var bytes = 0L

  def add(row: Long): Unit = {
    rows += 1
    bytes += Rows.keyValueBytes(row)
  }

  def remove(row: Long): Unit = {
    rows -= 1
    bytes -= Rows.keyValueBytes(row)
  }

  def clear(): Unit = {
    rows = 0L
    bytes = 0L
  }
}
