"""IDs as defaults of SQLAlchemy, Django, and SQLModel with FastAPI: bigint and uuid keys, read back unchanged."""

import json
import unittest
import uuid

import support  # noqa: F401
from flakelease_allocator.testing import FakeAllocator

ids = FakeAllocator()


def new_uuid() -> uuid.UUID:
    return ids.next("uuid")


class ORMs(unittest.TestCase):
    def check(self, number, key, read_number, read_key, text):
        self.assertGreater(number, 2**53)
        self.assertEqual((read_number, uuid.UUID(str(read_key)), key.version), (number, key, 7))
        self.assertEqual(json.loads(text), {"id": str(number), "key": str(key)})

    def test_sqlalchemy(self):
        from sqlalchemy import BigInteger, Column, String, create_engine, orm
        base = orm.declarative_base()

        class Order(base):
            __tablename__ = "orders"
            id = Column(BigInteger, primary_key=True, default=ids.next, autoincrement=False)
            key = Column(String(36), unique=True, default=lambda: str(new_uuid()))  # in PostgreSQL a UUID column

        engine = create_engine("sqlite://")
        base.metadata.create_all(engine)
        with orm.Session(engine) as session:
            order = Order()
            session.add(order)
            session.commit()
            number, key = order.id, uuid.UUID(order.key)
            session.expire_all()
            read = session.get(Order, number)
            self.check(number, key, read.id, read.key, json.dumps({"id": str(read.id), "key": read.key}))

    def test_django(self):
        import django
        from django.conf import settings
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
                           DEFAULT_AUTO_FIELD="django.db.models.BigAutoField")
        django.setup()
        from django.db import connection, models

        class Order(models.Model):
            id = models.BigIntegerField(primary_key=True, default=ids.next)
            key = models.UUIDField(unique=True, default=new_uuid)

            class Meta:
                app_label = "orders"

        with connection.schema_editor() as editor:
            editor.create_model(Order)
        order = Order.objects.create()
        read = Order.objects.get(pk=order.pk)
        self.check(order.id, order.key, read.id, read.key, json.dumps({"id": str(read.id), "key": str(read.key)}))

    def test_sqlmodel_and_fastapi(self):
        from fastapi.encoders import jsonable_encoder
        from sqlalchemy import BigInteger, Column
        from sqlmodel import Field, Session, SQLModel, create_engine

        class Order(SQLModel, table=True):
            id: int = Field(default_factory=ids.next, sa_column=Column(BigInteger, primary_key=True,
                                                                       autoincrement=False))
            key: uuid.UUID = Field(default_factory=new_uuid)

        engine = create_engine("sqlite://")
        SQLModel.metadata.create_all(engine)
        with Session(engine) as session:
            order = Order()
            session.add(order)
            session.commit()
            number, key = order.id, order.key
            session.expire_all()
            read = session.get(Order, number)
            text = jsonable_encoder(read, custom_encoder={int: str})
            self.check(number, key, read.id, read.key, json.dumps(text))


if __name__ == "__main__":
    unittest.main()
