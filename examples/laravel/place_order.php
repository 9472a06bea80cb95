<?php

use Illuminate\Support\Facades\DB;

function placeOrder(string $customer, int $cents): int
{
    return DB::transaction(function () use ($customer, $cents) {
        $order = DB::table('orders')->insertGetId(['customer_id' => $customer, 'cents' => $cents]);
        DB::table('outbox_events')->insert([
            'topic' => 'orders.created',
            'key' => $customer,
            'payload' => json_encode(['order' => $order, 'cents' => $cents], JSON_THROW_ON_ERROR),
            'headers' => json_encode(['source' => 'laravel'], JSON_THROW_ON_ERROR),
        ]);
        return $order;
    });
}
