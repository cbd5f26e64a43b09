// Builds the messages of a commit and drops them; in this package because the writer is private to it.
package org.apache.spark.sql.lamina.wire

import java.nio.ByteBuffer

import org.apache.spark.sql.lamina.table.StoreTable

final class ChangeMessages {
  private val writer = new ChangeWriter
  private var sent = 0L

  private val dropped = new ByteSink {
    override def add(bytes: ByteBuffer): Unit = sent += bytes.remaining
    override def flush(): Unit = ()
  }

  /** Bytes that the open transaction would send. */
  def build(table: StoreTable): Long = {
    sent = 0L
    writer.stream(dropped)
    table.changeSet(writer)
    writer.finish(dropped)
    writer.release()
    sent
  }
}
