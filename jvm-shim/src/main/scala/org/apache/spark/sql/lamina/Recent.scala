package org.apache.spark.sql.lamina

import java.util.{LinkedHashMap, Map => JMap}

import scala.jdk.CollectionConverters._

/** A map that forgets what came first when there is too much of it. Not thread-safe. */
private[lamina] final class Recent[Key, Value] {
  import Recent.Kept

  private val map = new LinkedHashMap[Key, Value] {
    override def removeEldestEntry(eldest: JMap.Entry[Key, Value]): Boolean = size > Kept
  }

  def get(key: Key): Option[Value] = Option(map.get(key))

  /** What the key had before. */
  def put(key: Key, value: Value): Option[Value] = Option(map.put(key, value))

  def keysOf(value: Value): Seq[Key] = map.asScala.collect { case (key, `value`) => key }.toSeq
}

private[lamina] object Recent {

  /** Also of thousands of stores that rest, each on an object of its own: some megabytes. */
  val Kept = 1 << 15
}
