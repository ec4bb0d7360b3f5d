import pytest

pytest.register_assert_rewrite("tests.conformance.connection_suite")
