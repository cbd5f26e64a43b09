package org.apache.spark.sql.lamina

import org.json4s.{JArray, JBool, JInt, JNothing, JNull, JObject, JString, JValue}
import org.json4s.JsonDSL._
import org.json4s.jackson.JsonMethods.{compact, parse, render}

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.types.{DataType, NullType, StructType}

/**
 * A named key space of a store, as the manifest records it.
 *
 * @param id never used twice within a lineage
 * @param encoding `unsaferow` or `avro`: Spark's name of how a row becomes bytes
 */
final case class ColumnFamily(
    id: Int,
    name: String,
    internal: Boolean,
    keySchema: StructType,
    valueSchema: StructType,
    spec: KeyStateEncoderSpec,
    encoding: String,
    multiValue: Boolean,
    rowChecksum: Boolean
) {

  /** Whether keys are kept in order: those that an operator may scan by prefix or by range. */
  def ordered: Boolean = spec match {
    case _: NoPrefixKeyStateEncoderSpec => false
    case _ => true
  }

  def avro: Boolean = encoding == StateStoreEncoding.Avro.toString

  /** Keys are the bytes of the UnsafeRow, not those of Spark's RocksDB encoder. */
  def rawKeys: Boolean = !avro && !ordered

  def rawValues: Boolean = !avro

  /** What manifests of a store of this name say of it. */
  def toJson(store: String): JObject =
    ("id" -> id) ~
      ("name" -> name) ~
      ("internal" -> internal) ~
      ("key_schema" -> keySchema.json) ~
      ("value_schema" -> valueSchema.json) ~
      ("encoder" -> spec.jsonValue) ~
      ("encoding" -> encoding) ~
      ("multi_value" -> multiValue) ~
      ("row_checksum" -> rowChecksum) ~
      ("key_bytes" -> (if (rawKeys) "row" else "spark")) ~
      ("value_bytes" -> (if (rawValues) "row" else "spark")) ~
      ("partition_key" -> partitionKey(store))

  /**
   * How Spark's partitioning key follows from the key: what the stock operators do, by encoder and name. Joins give the
   * name to a column family or, in state formats 1 and 2, to a store.
   */
  private def partitionKey(store: String): JObject = spec match {
    case PrefixKeyScanStateEncoderSpec(_, columns) => ("kind" -> "prefix") ~ ("columns" -> columns)
    case _: TimestampAsPostfixKeyStateEncoderSpec | _: TimestampAsPrefixKeyStateEncoderSpec =>
      ("kind" -> "drop-last") ~ ("columns" -> 1)
    case _: NoPrefixKeyStateEncoderSpec =>
      if (keySchema.fields.exists(_.dataType == NullType) || internal) "kind" -> "unknown"
      else if (Seq(name, store).exists(_.endsWith("keyWithIndexToValue"))) ("kind" -> "drop-last") ~ ("columns" -> 1)
      else "kind" -> "key"
    case _ => "kind" -> "unknown"
  }
}

object ColumnFamily {

  /** The format has 16 bits for an id. */
  val MaxId = 65535

  /** Refuses an id that does not fit the format; `what` needs it. */
  def requireId(id: Int, what: String): Unit = if (id < 0 || id > MaxId) {
    throw new LaminaError(
      LaminaError.StoreUnsupported,
      s"$what needs the column family id $id, and ids end at $MaxId: each column family that is created, or removed and " +
        "created again, takes a new one; keep column families, and start the query from a new checkpoint"
    )
  }

  /** Reads what [[ColumnFamily.toJson]] wrote. */
  def fromJson(json: JValue): ColumnFamily = {
    def text(key: String): String = json \ key match {
      case JString(value) => value
      case other => throw unreadable(key, other)
    }
    def flag(key: String): Boolean = json \ key match {
      case JBool(value) => value
      case other => throw unreadable(key, other)
    }
    val id = json \ "id" match {
      case JInt(value) => value.toInt
      case other => throw unreadable("id", other)
    }
    val keySchema = schema(text("key_schema"))
    val encoder = json \ "encoder" match {
      case value: JObject => value.values
      case JString(value) => parse(value).asInstanceOf[JObject].values
      case other => throw unreadable("encoder", other)
    }
    ColumnFamily(
      id,
      text("name"),
      flag("internal"),
      keySchema,
      schema(text("value_schema")),
      KeyStateEncoderSpec.fromJson(keySchema, encoder),
      text("encoding"),
      flag("multi_value"),
      flag("row_checksum")
    )
  }

  private def schema(json: String): StructType = DataType.fromJson(json).asInstanceOf[StructType]

  private def unreadable(key: String, found: JValue): LaminaError = new LaminaError(
    LaminaError.FileDamaged,
    s"a column family of a manifest has $key = ${if (found == JNothing) "nothing" else compact(render(found))}"
  )
}

/**
 * The column families of one version. Immutable: a transaction makes its own copy, and an abort forgets it.
 *
 * @param next the id that the next new column family gets
 */
final case class ColumnFamilies(byName: Map[String, ColumnFamily], next: Int) {
  def get(name: String): Option[ColumnFamily] = byName.get(name)

  def add(family: Int => ColumnFamily): ColumnFamilies = {
    val added = family(next)
    ColumnFamilies(byName + (added.name -> added), next + 1)
  }

  def replace(family: ColumnFamily): ColumnFamilies = copy(byName = byName + (family.name -> family))

  def remove(name: String): ColumnFamilies = copy(byName = byName - name)

  def all: Seq[ColumnFamily] = byName.values.toSeq.sortBy(_.id)

  def toJson(store: String): JArray = JArray(all.map(_.toJson(store)).toList)
}

object ColumnFamilies {
  val Empty: ColumnFamilies = ColumnFamilies(Map.empty, 0)

  /** Reads `column_families` and `next_column_family` of a response. */
  def fromJson(header: JValue): ColumnFamilies = {
    val families = header \ "column_families" match {
      case JArray(values) => values.map(ColumnFamily.fromJson)
      case JNothing | JNull => Nil
      case other => throw new LaminaError(LaminaError.EngineProtocol, s"column_families is ${compact(render(other))}")
    }
    val next = header \ "next_column_family" match {
      case JInt(value) => value.toInt
      case _ => families.map(_.id + 1).maxOption.getOrElse(0)
    }
    ColumnFamilies(families.map(family => family.name -> family).toMap, next)
  }
}
