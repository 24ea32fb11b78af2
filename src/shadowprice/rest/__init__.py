"""The REST API's resources as typed models, shared by the service and the client.

FastAPI generates the OpenAPI document from them, the service's handlers return them and the client
reads them. They import pydantic only, so that the client loads no service.
"""
