package org.apache.spark.sql.lamina.table

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.unsafe.Platform

class TransientRowSuite extends AnyFunSuite {

  private def put(transient: TransientRow, valueBytes: Int): Array[Byte] = {
    val value = Array.tabulate[Byte](valueBytes)(n => (n * 31).toByte)
    val row = transient.of(Array[Byte](1, 2, 3), Platform.BYTE_ARRAY_OFFSET.toLong, 3, value)
    val found = new Array[Byte](Rows.valueLength(row))
    Platform.copyMemory(null, Rows.valueAddress(row), found, Platform.BYTE_ARRAY_OFFSET.toLong, found.length)
    assert(found.sameElements(value))
    value
  }

  test("the memory of one large row goes after many small ones, and comes again with the next large one") {
    val transient = new TransientRow
    put(transient, 30 << 20)
    assert(transient.capacity >= (30 << 20) && transient.capacity < (35 << 20))
    (1 to TransientRow.Small).foreach(_ => put(transient, 100))
    assert(transient.capacity >= (30 << 20), "rows of both sizes may take turns")
    put(transient, 100)
    assert(transient.capacity <= 1024)
    put(transient, 2 << 20)
    assert(transient.capacity >= (2 << 20) && transient.capacity < (3 << 20))
  }

  test("what a large row took goes at rest, and what small ones took stays") {
    val transient = new TransientRow
    put(transient, 30 << 20)
    transient.rest()
    assert(transient.capacity == 0)
    put(transient, 100)
    transient.rest()
    assert(transient.capacity > 0)
    put(transient, 2 << 20)
  }
}
