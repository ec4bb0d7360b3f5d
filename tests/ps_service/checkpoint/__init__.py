"""Tests of ps_service.checkpoint."""
