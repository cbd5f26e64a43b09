package org.apache.spark.sql.lamina.table

import org.apache.spark.unsafe.Platform

/** Where chunks come from: the C library's allocator, or what a test puts in its place. */
trait SystemMemory {

  /** The address of so many bytes. */
  def allocate(bytes: Long): Long

  def free(address: Long): Unit
}

object SystemMemory {

  /** A slot of [[HashIndex]] holds an address of so many bits, as arm64 gives them; x86-64 gives 47. */
  val AddressBits = 48

  object Native extends SystemMemory {
    override def allocate(bytes: Long): Long = Platform.allocateMemory(bytes)
    override def free(address: Long): Unit = Platform.freeMemory(address)
  }
}
