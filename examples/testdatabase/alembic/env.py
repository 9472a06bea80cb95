def include_name(name, type_, parent_names):
    return not (type_ == "table" and name.startswith("outbox_"))


def include_object(object, name, type_, reflected, compare_to):
    return not (type_ == "table" and name.startswith("outbox_"))


def configure(context, connection, metadata):
    context.configure(
        connection=connection,
        target_metadata=metadata,
        include_name=include_name,  # hides the tables in the database
        include_object=include_object,  # hides the models of the application
    )
