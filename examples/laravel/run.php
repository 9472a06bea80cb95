<?php

// Places two orders with place_order.php; the second is rejected at COMMIT. Laravel's
// database component is enough for it, with the DB facade on top; in an
// application all of this is there already.

use Illuminate\Database\Capsule\Manager;
use Illuminate\Database\QueryException;
use Illuminate\Support\Facades\Facade;

// Composer's vendor/autoload.php, or where Debian's php-illuminate-database has it.
require getenv('AUTOLOAD') ?: 'Illuminate/Database/autoload.php';
require __DIR__ . '/place_order.php';

$capsule = new Manager();
$capsule->addConnection(['driver' => 'pgsql', 'url' => getenv('DATABASE_URL')]);
$container = $capsule->getContainer();
$container['db'] = $capsule->getDatabaseManager();
Facade::setFacadeApplication($container);

placeOrder('customer-7', 4200);
try {
    placeOrder('unknown', 100);
    fwrite(STDERR, "the order of an unknown customer was accepted\n");
    exit(1);
} catch (PDOException $e) {
    if ($e->getCode() !== '23503') { // foreign_key_violation
        throw $e;
    }
    echo "one order placed, one rolled back\n";
}
