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

  def set(rows: Long, bytes: Long): Unit = {
    this.rows = rows
    this.bytes = bytes
  }

  def clear(): Unit = set(0L, 0L)
}
